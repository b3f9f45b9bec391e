//! Fixed scenes: simulations with some plain runs and one chosen fault at one chosen moment.

use crate::client::{Client, plain};
use crate::machine::Plan;
use crate::sim::{Kind, Report, end};
use crate::watch;
use crate::world::{Happening, World};
use adapters::Provider as _;
use model::time::{MINUTE, SECOND};

pub struct Scene {
    /// How long each command works.
    pub works_ms: Vec<i64>,
    /// What happens, when, and for how long.
    pub blow: (i64, Kind, i64),
}

impl Scene {
    pub fn play(&self) -> Report {
        watch::watching(|| {
            let (seed, mut world) = self.stage();
            for (number, ms) in self.works_ms.iter().enumerate() {
                let text = Plan::text(*ms, 0, 3000);
                world.add_client(number as i64 * SECOND, Client::of(number as u64, plain(text)));
            }
            let (at, kind, ms) = self.blow;
            world.after(at, Happening::Blow { kind, ms: Some(ms) });
            // A clock is set at once; everything else lasts.
            let lasts_ms = if matches!(kind, Kind::ClockForward | Kind::ClockBack) { 0 } else { ms };
            end(world, seed, at + lasts_ms + 1)
        })
    }

    /// A simulation without faults, with a machine for every run and enough credits.
    fn stage(&self) -> (u64, World) {
        let worlds = (0..).map(|seed| (seed, World::new(seed, MINUTE, Some(&[]))));
        let roomy = |world: &World| world.far.near.capabilities().max_instances as usize >= self.works_ms.len();
        let mut good = worlds.filter(|(_, world)| roomy(world) && !world.poor);
        good.next().expect("one of many worlds has room")
    }
}
