//! A simulated process of the control plane: its engine, the items it works on, and its death, which a fault places at a commit or a
//! call. After its death nothing that it still tries has an effect.

use crate::auditor::Auditor;
use crate::faults::{Faults, Kind};
use crate::provider::FarProvider;
use crate::time::{Now, poll};
use crate::tool::FarTool;
use engine::{Config, Engine, EngineContext, Presence, Provider, Tool};
use model::step::ToolKind;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use store::{CrashHook, Installation, Item, Moment, Store, Worker};

/// The one that people and runners talk to; it works too.
pub const SERVER: usize = 0;
/// One that only works.
pub const SECOND: usize = 1;
const NOBODY: usize = 2;

pub struct Process {
    pub engine: Engine,
    pub boot: u64,
    pub worker: Worker,
    pub beats: u64,
    pub frozen_until_ms: i64,
    tasks: Vec<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Process {
    pub fn new(engine: Engine, worker: Worker, boot: u64) -> Process {
        Process { engine, boot, worker, beats: 0, frozen_until_ms: 0, tasks: Vec::new() }
    }

    pub fn begin(&mut self, item: Item) {
        let engine = self.engine.clone();
        self.tasks.push(Box::pin(async move { engine.work_on(item).await }));
    }

    /// A request that takes its time, and ends with the process.
    pub fn ask(&mut self, request: impl Future<Output = ()> + 'static) {
        self.tasks.push(Box::pin(request));
    }

    /// True if any of what is under way came to its end.
    pub fn go_on(&mut self, dead: &AtomicBool) -> bool {
        let before = self.tasks.len();
        self.tasks.retain_mut(|task| dead.load(Ordering::Relaxed) || poll(task).is_none());
        self.tasks.len() != before
    }
}

/// Where processes end, and what the disk does to their writes.
pub struct Fate {
    pub dead: [Arc<AtomicBool>; 3],
    current: AtomicUsize,
    now: Now,
    faults: Faults,
    /// Tells the auditor that a commit's hints are lost with its author.
    untold: Arc<AtomicBool>,
    full_until_ms: AtomicI64,
    /// Until then workers look for what a dead one may hold.
    unsettled_until_ms: AtomicI64,
    /// A caller got an error and went on.
    troubled: AtomicBool,
}

impl Fate {
    pub fn new(now: &Now, faults: &Faults, auditor: &Auditor) -> Arc<Fate> {
        Arc::new(Fate {
            dead: Default::default(),
            current: AtomicUsize::new(NOBODY),
            now: now.clone(),
            faults: faults.clone(),
            untold: auditor.untold(),
            full_until_ms: AtomicI64::new(0),
            unsettled_until_ms: AtomicI64::new(0),
            troubled: AtomicBool::new(false),
        })
    }

    /// What is written from now on is written by this process.
    pub fn enter(&self, process: usize) {
        self.current.store(process, Ordering::Relaxed);
    }

    /// What is written from now on is written by none of them.
    pub fn leave(&self) {
        self.enter(NOBODY);
    }

    pub fn is_dead(&self, process: usize) -> bool {
        self.dead[process].load(Ordering::Relaxed)
    }
    pub fn set_dead(&self, process: usize, dead: bool) {
        self.dead[process].store(dead, Ordering::Relaxed);
    }

    pub fn disk_is_full_until(&self, ms: i64) {
        self.full_until_ms.store(ms, Ordering::Relaxed);
    }

    /// A worker's lease may end unseen, or what it holds be unknown to it: found out within the life of a lease, and `ms`.
    pub fn unsettle(&self, ms: i64) {
        let until_ms = self.now.ms() + ms + 3 * store::worker::LEASE_MS;
        self.unsettled_until_ms.fetch_max(until_ms, Ordering::Relaxed);
    }
    pub fn unsettled_until_ms(&self) -> i64 {
        self.unsettled_until_ms.load(Ordering::Relaxed)
    }

    /// Whether the store has returned an error to a caller since the last call.
    pub fn was_troubled(&self) -> bool {
        self.troubled.swap(false, Ordering::Relaxed)
    }

    pub fn hook(self: &Arc<Fate>) -> CrashHook {
        let fate = self.clone();
        Arc::new(move |_, moment| fate.strikes(moment))
    }

    fn strikes(&self, moment: Moment) -> bool {
        let process = self.current.load(Ordering::Relaxed);
        if process == NOBODY {
            return false;
        }
        if self.is_dead(process) {
            return moment == Moment::Before;
        }
        let (dies, troubled) = match moment {
            Moment::Before => {
                let full = self.now.ms() < self.full_until_ms.load(Ordering::Relaxed);
                (!full && self.faults.strikes(Kind::CrashBefore).is_some(), full)
            }
            Moment::After => {
                let dies = self.faults.strikes(Kind::CrashAfter).is_some();
                (dies, !dies && self.faults.strikes(Kind::OutcomeUnknown).is_some())
            }
        };
        if dies {
            self.set_dead(process, true);
        }
        if troubled {
            self.unsettle(0);
            self.troubled.store(true, Ordering::Relaxed);
        }
        if moment == Moment::After && (dies || troubled) {
            self.untold.store(true, Ordering::Relaxed);
        }
        dies || troubled
    }
}

/// `alone`: no other process of the control plane is there.
pub fn engine(config: &Config, far: &FarProvider, tool: &FarTool, store: &Store, alone: bool) -> Engine {
    let provider: Arc<dyn Provider> = Arc::new(far.clone());
    let context = EngineContext {
        config: config.clone(),
        installation: Installation::new("s1mulat3", [7; 32]),
        providers: BTreeMap::from([("fake".to_owned(), provider)]).into(),
        tools: [ToolKind::Http, ToolKind::Llm].map(|kind| (kind, Arc::new(tool.clone()) as Arc<dyn Tool>)).into(),
        models: Default::default(),
        control_urls: engine::ControlUrls::only("sim:"),
        control_ca: None,
        presence: if alone { Presence::alone() } else { Presence::default() },
        blob_source: store.blobs().source(),
        timer: Arc::new(far.now.clone()),
    };
    Engine::new(context, store.clone()).expect("the settings are good").reading(crate::cached_run::document)
}
