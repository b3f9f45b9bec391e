//! Placement as a pure decision: which slot a job gets, or what must happen before it can have one.

use crate::bug;
use crate::feature::{self, Feature, Wanted};
use crate::spec::Resources;
use crate::{AllocationId, InstanceId, OrgId};

/// An `AVAILABLE` allocation on a ready instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    pub allocation: AllocationId,
    pub instance: InstanceId,
    pub org: OrgId,
    pub resources: Resources,
    /// Its machine may be taken away at any time.
    pub spot: bool,
    pub init_checksum: Option<String>,
    pub features: Vec<Feature>,
    pub version: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    pub org: OrgId,
    pub resources: Resources,
    /// A machine that may be taken away at any time will do.
    pub spot: bool,
    pub init_checksum: Option<String>,
    pub features: Vec<Wanted>,
}

/// What is there beside the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Instances that exist or are being made or unmade.
    pub instances: i64,
    pub max_instances: i64,
    /// Instances on their way to an end: room that is about to come.
    pub ending: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    Claim(Slot),
    Spawn,
    /// The pool is full and this idle machine does not fit the waiting job: it is terminated to make room.
    Retire(InstanceId),
    Wait,
}

/// Where a waiting list (one pool, one priority) stands for an org that joins it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turns {
    /// The turn of the job that is placed next, if a job waits.
    pub served_next: Option<i64>,
    /// The latest turn ever given, and the latest given to this org.
    pub latest: Option<i64>,
    pub own_latest: Option<i64>,
}

/// The turn of an org's next job. Orgs take turns with one job each, so a thousand jobs of one org delay another org's first
/// job by one place, not by a thousand. A new turn is never in the past: an org gains nothing by having submitted nothing for a
/// while. When no job waits, all orgs start with the same turn.
pub fn turn(turns: Turns) -> i64 {
    if bug!(no_turns) {
        return 1;
    }
    let now = turns.served_next.or(turns.latest.map(|latest| latest + 1)).unwrap_or(1);
    now.max(turns.own_latest.map_or(1, |own| own + 1))
}

/// 100: prepared for exactly this; 50: vanilla, needs its init or a feature; none: excluded.
pub fn score(slot: &Slot, wish: &Wish) -> Option<i64> {
    if slot.org != wish.org || slot.spot && !wish.spot || !slot.resources.satisfies(&wish.resources) {
        return None;
    }
    let init = match (&slot.init_checksum, &wish.init_checksum) {
        (have, want) if have == want => 100,
        (None, Some(_)) => 50,
        _ => return None,
    };
    Some(init.min(feature::score(&slot.features, &wish.features)?))
}

/// Decides for the head of the waiting list. Ties go to the smallest machine, then to the lowest id, so that every process
/// decides the same.
pub fn place(wish: &Wish, slots: &[Slot], room: Room) -> Placement {
    let best =
        slots.iter().filter_map(|slot| score(slot, wish).map(|score| (score, slot))).max_by_key(|(score, slot)| {
            (*score, std::cmp::Reverse(size(&slot.resources)), std::cmp::Reverse(slot.allocation))
        });
    if let Some((_, slot)) = best {
        return Placement::Claim(slot.clone());
    }
    if room.instances < room.max_instances {
        return Placement::Spawn;
    }
    if room.ending > 0 {
        return Placement::Wait;
    }
    match slots.iter().min_by_key(|slot| slot.allocation) {
        Some(idle) => Placement::Retire(idle.instance),
        None => Placement::Wait,
    }
}

fn size(resources: &Resources) -> (i64, i64, i64) {
    let gpus = resources.gpu.as_ref().map_or(0, |gpu| gpu.count);
    (gpus, resources.memory_bytes.unwrap_or(i64::MAX), resources.cpu_milli.unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(id: i64, memory: Option<i64>, init: Option<&str>) -> Slot {
        Slot {
            allocation: AllocationId(id),
            instance: InstanceId(id),
            org: OrgId(1),
            resources: Resources { memory_bytes: memory, ..Resources::default() },
            spot: false,
            init_checksum: init.map(str::to_owned),
            features: Vec::new(),
            version: 1,
        }
    }
    fn wish(memory: Option<i64>, init: Option<&str>) -> Wish {
        Wish {
            org: OrgId(1),
            resources: Resources { memory_bytes: memory, ..Resources::default() },
            spot: false,
            init_checksum: init.map(str::to_owned),
            features: Vec::new(),
        }
    }
    const FULL: Room = Room { instances: 2, max_instances: 2, ending: 0 };

    #[test]
    fn the_prepared_machine_goes_before_the_vanilla_one() {
        let slots = [slot(1, None, None), slot(2, None, Some("x"))];
        assert_eq!(place(&wish(None, Some("x")), &slots, FULL), Placement::Claim(slots[1].clone()));
        assert_eq!(place(&wish(None, None), &slots, FULL), Placement::Claim(slots[0].clone()));
    }

    #[test]
    fn the_smallest_that_is_enough_is_taken() {
        let slots = [slot(1, Some(800), None), slot(2, Some(400), None), slot(3, Some(100), None)];
        assert_eq!(place(&wish(Some(200), None), &slots, FULL), Placement::Claim(slots[1].clone()));
    }

    #[test]
    fn a_full_pool_gives_up_an_idle_machine_that_fits_nobody() {
        let slots = [slot(1, Some(100), None)];
        assert_eq!(place(&wish(Some(200), None), &slots, FULL), Placement::Retire(InstanceId(1)));
        assert_eq!(
            place(&wish(Some(200), None), &slots, Room { ending: 1, ..FULL }),
            Placement::Wait,
            "one is on its way out already"
        );
        assert_eq!(place(&wish(Some(200), None), &[], FULL), Placement::Wait);
        assert_eq!(place(&wish(Some(200), None), &slots, Room { instances: 1, ..FULL }), Placement::Spawn);
    }

    #[test]
    fn a_machine_that_may_be_taken_away_is_for_who_asked_for_such() {
        let spot = Slot { spot: true, ..slot(1, None, None) };
        let asks = Wish { spot: true, ..wish(None, None) };
        assert_eq!(place(&asks, std::slice::from_ref(&spot), FULL), Placement::Claim(spot.clone()));
        assert_eq!(place(&asks, &[slot(2, None, None)], FULL), Placement::Claim(slot(2, None, None)));
        assert_eq!(place(&wish(None, None), &[spot], FULL), Placement::Retire(InstanceId(1)));
    }

    #[test]
    fn another_orgs_machine_is_never_claimed() {
        let theirs = Slot { org: OrgId(2), ..slot(1, None, None) };
        assert_eq!(place(&wish(None, None), std::slice::from_ref(&theirs), FULL), Placement::Retire(InstanceId(1)));
    }

    #[test]
    fn orgs_take_turns() {
        let turns = |served_next, latest, own_latest| turn(Turns { served_next, latest, own_latest });
        assert_eq!(turns(None, None, None), 1, "the first job of all");
        assert_eq!(turns(Some(1), Some(100), Some(100)), 101, "behind one's own");
        assert_eq!(turns(Some(7), Some(100), None), 7, "a newcomer joins the round that is served");
        assert_eq!(turns(Some(7), Some(100), Some(7)), 8, "once a round, also for who submits one by one");
        assert_eq!(turns(None, Some(100), Some(3)), 101, "nobody waits: what was used before is forgotten");
    }
}
