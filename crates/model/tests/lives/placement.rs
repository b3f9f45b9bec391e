//! Placement and holds under random pools: the best slot is taken, always the same one, never another org's; a hold only
//! grows, and only to its cap.

use model::hold::{Extension, Hold, HoldLimits};
use model::names::{self, ResourceName};
use model::pool::{Placement, Room, Slot, Wish, place, score};
use model::recovery::{MAX_DELAY_MS, backoff, infrastructure_pause};
use model::spec::Resources;
use model::time::{DAY, HOUR};
use model::{AllocationId, InstanceId, OrgId, Timestamp};
use proptest::prelude::*;

fn resources() -> impl Strategy<Value = Resources> {
    let amount = || prop::option::of(1i64..5);
    (amount(), amount()).prop_map(|(cpu_milli, memory_bytes)| Resources {
        cpu_milli,
        memory_bytes,
        gpu: None,
        disk_bytes: None,
    })
}

fn init() -> impl Strategy<Value = Option<String>> {
    prop::option::of(prop::sample::select(vec!["a".to_owned(), "b".to_owned()]))
}

fn slots() -> impl Strategy<Value = Vec<Slot>> {
    let one = (1i64..3, resources(), init());
    prop::collection::vec(one, 0..8).prop_map(|all| {
        let numbered = all.into_iter().zip(1i64..);
        let slot = |((org, resources, init_checksum), id)| Slot {
            allocation: AllocationId(id),
            instance: InstanceId(id),
            org: OrgId(org),
            resources,
            spot: false,
            init_checksum,
            features: Vec::new(),
            version: 1,
        };
        numbered.map(slot).collect()
    })
}

fn wish() -> impl Strategy<Value = Wish> {
    (resources(), init()).prop_map(|(resources, init_checksum)| Wish {
        org: OrgId(1),
        resources,
        spot: false,
        init_checksum,
        features: Vec::new(),
    })
}

fn room() -> impl Strategy<Value = Room> {
    (0i64..5, 0i64..5, 0i64..2).prop_map(|(instances, max_instances, ending)| Room { instances, max_instances, ending })
}

fn extension() -> impl Strategy<Value = Extension> {
    prop_oneof![Just(Extension::Ssh), Just(Extension::Asked), (0..48 * HOUR).prop_map(|ms| Extension::AskedFor { ms }),]
}

proptest! {
    #[test]
    fn the_best_slot_is_taken_whatever_order_they_come_in(slots in slots(), wish in wish(), room in room()) {
        let placed = place(&wish, &slots, room);
        let reversed: Vec<Slot> = slots.iter().rev().cloned().collect();
        prop_assert_eq!(&placed, &place(&wish, &reversed, room), "who asks, and how, decides nothing");
        let best = slots.iter().filter_map(|slot| score(slot, &wish)).max();
        match placed {
            Placement::Claim(slot) => {
                prop_assert_eq!(score(&slot, &wish), best);
                prop_assert!(slot.org == wish.org && slot.resources.satisfies(&wish.resources));
            }
            Placement::Spawn => prop_assert!(best.is_none() && room.instances < room.max_instances),
            Placement::Retire(machine) => {
                prop_assert!(best.is_none() && room.instances >= room.max_instances && room.ending == 0);
                prop_assert!(slots.iter().any(|slot| slot.instance == machine), "only what is idle goes");
            }
            Placement::Wait => prop_assert!(best.is_none() && room.instances >= room.max_instances),
        }
    }

    #[test]
    fn a_hold_only_grows_and_only_to_its_cap(asked in prop::collection::vec((0..30 * HOUR, extension()), 0..20)) {
        let limits = HoldLimits::default();
        let mut hold = Hold { until: Timestamp(limits.after(true, None)), completed_at: Timestamp(0) };
        let mut now = 0;
        for (pause, by) in asked {
            now += pause;
            let until = limits.extended(hold, by, Timestamp(now));
            prop_assert!(until >= hold.until, "never shortened");
            let cap = match by {
                Extension::Ssh => limits.max_ssh_extension_ms,
                Extension::Asked => limits.max_explicit_extension_ms,
                Extension::AskedFor { .. } => limits.absolute_max_debug_hold_ms,
            };
            prop_assert!(until == hold.until || until.ms() <= cap, "{:?} went beyond its cap", by);
            prop_assert!(until.ms() <= DAY);
            hold.until = until;
        }
    }

    #[test]
    fn whatever_is_not_a_name_of_ours_is_not_read_as_one(text in "[a-z0-9-]{0,40}") {
        if let Some(name) = names::parse(&text) {
            prop_assert_eq!(name.to_string(), text, "a name has one spelling");
        }
    }

    #[test]
    fn names_of_different_things_differ(a in 0i64..1_000_000, b in 0i64..1_000_000, manifest in prop::option::of(0i64..1_000)) {
        let name = |resource| ResourceName { control_id: "abcdefgh".into(), manifest, resource }.to_string();
        prop_assert_eq!(name(a) == name(b), a == b);
    }

    #[test]
    fn pauses_grow_and_are_bounded(tries in 1i64..200, jitter in -200i64..200) {
        prop_assert!((0..=MAX_DELAY_MS).contains(&backoff(tries, jitter)));
        prop_assert!(backoff(tries, 0) <= backoff(tries + 1, 0));
        prop_assert!(infrastructure_pause(tries) <= infrastructure_pause(tries + 1));
    }
}
