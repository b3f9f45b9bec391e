//! What goes wrong in one world, drawn from its seed. Each kind is absent from about half of the worlds, so that the others
//! are seen alone too. Never decides when: the world asks.

use crate::chance::Chance;
use model::TroubleKind;
use model::time::{HOUR, MINUTE, SECOND};

/// How often, in a thousand, or how long.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// At a commit, before or after it.
    pub crash: i64,
    /// A message (report, answer, dial) does not arrive.
    pub lost: i64,
    pub doubled: i64,
    pub late: i64,
    pub call_fails_before: i64,
    pub call_fails_after: i64,
    pub call_takes_ms: i64,
    pub list_lag_calls: u32,
    pub gone_lag_calls: u32,
    pub boot_takes_ms: i64,
    /// Things that happen at a moment of their own.
    pub blows: Vec<(i64, Blow)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    /// The control plane is killed and stays away for so long.
    Outage {
        ms: i64,
    },
    /// It ends in an orderly way, and comes back.
    Upgrade,
    KillRunner,
    KillKeeper,
    DestroyMachine,
    /// Nothing from one machine arrives for so long.
    CutOff {
        ms: i64,
    },
}

impl Faults {
    /// What may go wrong in the first `ms` of a world.
    pub fn draw(chance: &mut Chance, ms: i64) -> Faults {
        let mut rate = |rates: &[i64]| if chance.between(0, 2) == 0 { 0 } else { chance.pick(rates) };
        let mut faults = Faults {
            crash: rate(&[1, 3, 8]),
            lost: rate(&[20, 100, 300]),
            doubled: rate(&[20, 200]),
            late: rate(&[20, 200]),
            call_fails_before: rate(&[50, 300]),
            call_fails_after: rate(&[50, 300]),
            call_takes_ms: rate(&[200, 5 * SECOND, 40 * SECOND]),
            list_lag_calls: rate(&[1, 3]) as u32,
            gone_lag_calls: rate(&[1, 4]) as u32,
            boot_takes_ms: rate(&[SECOND, 30 * SECOND]),
            blows: Vec::new(),
        };
        for _ in 0..chance.between(0, 7) {
            let blow = match chance.between(0, 6) {
                0 => Blow::Outage { ms: chance.pick(&[SECOND, 25 * SECOND, 2 * MINUTE, 20 * MINUTE, HOUR]) },
                1 => Blow::Upgrade,
                2 => Blow::KillRunner,
                3 => Blow::KillKeeper,
                4 => Blow::DestroyMachine,
                _ => Blow::CutOff { ms: chance.pick(&[5 * SECOND, 70 * SECOND, 4 * MINUTE, 18 * MINUTE]) },
            };
            faults.blows.push((chance.between(0, ms), blow));
        }
        faults
    }

    /// Nothing goes wrong any more.
    pub fn calm() -> Faults {
        Faults::default()
    }
}

/// How a provider says no.
pub const TROUBLES: [TroubleKind; 5] =
    [TroubleKind::Capacity, TroubleKind::RateLimit, TroubleKind::Network, TroubleKind::Timeout, TroubleKind::Internal];
