//! Intents, nodes, reconcilers, settlement. Every writing transaction of the control plane is a function here.
//! Time arrives with the transaction; the engine never sleeps, never asks the time and never prints.

mod actor;
mod agent;
pub mod allocation;
pub mod artifact;
pub mod audit;
pub mod backtrack;
pub mod cache;
pub mod cached_run;
pub mod call;
mod call_step;
mod child;
mod choice;
mod closing;
mod command;
mod command_end;
pub mod config;
pub mod content;
pub mod dag;
mod departure;
pub mod desired;
mod dialogue;
mod dispatch;
pub mod durable;
mod endpoint;
pub mod execution;
pub mod external;
pub mod feature;
mod host;
mod idle_billing;
mod idle_runs;
mod index;
pub mod instance;
mod instance_cleanup;
mod intents;
mod job;
pub mod lease;
pub mod ledger;
pub mod log;
mod machine;
mod manifest;
pub mod message;
mod notify;
pub mod offer;
pub mod org;
pub mod orphan;
pub mod output;
mod pause;
pub mod plan;
mod plan_limits;
mod planner;
mod pool;
mod presence;
mod price;
pub mod provider;
mod provider_set;
mod provider_test;
pub mod question;
mod reach;
mod relay;
mod render;
pub mod run;
mod run_tx;
pub mod runner;
pub mod said;
mod same_step;
mod session;
mod settlement;
pub mod snapshot;
mod step;
mod sweep;
pub mod tool_price;
mod transition;
mod tree;
pub mod usage;
pub mod view;
pub mod why;
pub mod work;
pub mod workflow;

pub use actor::Actor;
pub use adapters;
pub use adapters::{Capabilities, Provider, Tool};
pub use config::Config;
pub use presence::Presence;
pub use provider_set::{Listing, Listings, ProviderSet, ProviderSettings};
pub use reach::ControlUrls;
pub use relay::Dialler;
/// For the processes that open a store, and for tests. Everything that the engine hands out has a name in the engine.
pub use store;
pub use store::blob::blocking;
pub use store::idempotency::Key;
pub use store::session::new_secret;
pub use store::token::{Scope, Token};
pub use store::{
    Counts, Database, Event, Hint, Installation, Lane, Options, Store, Topic, Tx, WorkClass, Worker, panic_text,
};

use model::spec::BlobSource;
use model::step::ToolKind;
use model::{Failure, Refused};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use store::blob::Blobs;
use store::log::Logs;
use tokio::sync::broadcast;

/// What every transaction may consult: settings, providers, the installation. Only the set of providers changes while the process lives.
pub struct EngineContext {
    pub config: Config,
    pub installation: Installation,
    pub providers: ProviderSet,
    /// What workers call for steps that need no machine.
    pub tools: BTreeMap<ToolKind, Arc<dyn Tool>>,
    /// The models that steps may name, with their limits and prices.
    pub models: adapters::tool::llm::Models,
    /// What runners are told to dial; their provider decides which.
    pub control_urls: ControlUrls,
    /// PEM of the authorities they trust beside those of their system.
    pub control_ca: Option<String>,
    pub presence: Presence,
    /// What the blob store can do.
    pub blob_source: BlobSource,
    /// Ends the wait for an act that takes too long.
    pub timer: Arc<dyn Timer>,
}

/// Ready when a timer has run down.
pub type TimerFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The engine has no timer of its own: the process that runs it passes one in, so that simulated time works like real time.
pub trait Timer: Send + Sync {
    /// Ready after so many milliseconds.
    fn after(&self, ms: i64) -> TimerFuture;
}

impl EngineContext {
    pub fn provider(&self, name: &str) -> Result<Arc<dyn Provider>, Refused> {
        let all = self.providers.all();
        let found = all.get(name).map(|listing| listing.provider.clone());
        found.ok_or_else(|| {
            let known: Vec<&str> = all.keys().map(String::as_str).collect();
            let meant = ::plan::nearest::did_you_mean(name, known.iter().copied());
            let fix = meant.unwrap_or_else(|| format!("choose one of {}", known.join(", ")));
            Refused::invalid("provider", format!("`{name}` is not set up here: {fix}"))
        })
    }
}

/// The one engine. Cloning shares it.
#[derive(Clone)]
pub struct Engine {
    pub context: Arc<EngineContext>,
    pub store: Store,
    pub logs: Logs,
    pub blobs: Blobs,
    refusals: run::Refusals,
    /// Items that this process has claimed and not finished; with the provider of which each holds a permit.
    in_hand: Arc<Mutex<BTreeMap<store::work::InHand, Option<i64>>>>,
    parked: Arc<Mutex<work::Parked>>,
    closing: Arc<closing::Closing>,
    /// Starts the user's program for each question (`[notify]`).
    notifier: Option<notify::Notifier>,
    workdirs: Arc<desired::Workdirs>,
    /// Ids up to this one, seen at providers and runners, are not given out.
    ids_passed: Arc<std::sync::atomic::AtomicI64>,
    turns: Arc<orphan::Turns>,
    org_names: Arc<std::sync::Mutex<std::collections::BTreeMap<model::OrgId, String>>>,
    links: Arc<relay::Links>,
    /// What this process calls itself in claims of executions.
    orchestrator: Arc<std::sync::OnceLock<i64>>,
    /// Starts the programs of `[calls] adapters`.
    executor: Option<Arc<execution::Executor>>,
    /// Executions that wait for their pin.
    pinning: Arc<index::Queues>,
    /// Reads the document of a run, which the function `dml+exec://dml-exec-repl/run` takes as its input.
    documents: Option<call::ReadDocument>,
}

impl Engine {
    /// Hints of all commits. `Lagged` means: read everything again.
    pub fn hints(&self) -> broadcast::Receiver<Hint> {
        self.store.hints()
    }

    /// Counters of the store since it was opened.
    pub fn counts(&self) -> Counts {
        self.store.counts()
    }

    /// False after a write failed because the disk was full, until one succeeds.
    pub fn writable(&self) -> bool {
        self.store.writable()
    }

    /// How often a worker renews its lease.
    pub fn beat_every_ms(&self) -> i64 {
        store::worker::beat_every_ms(self.context.config.timings.lease_ms)
    }

    pub fn new(context: EngineContext, store: Store) -> Result<Engine, Failure> {
        context.config.check()?;
        context.check_reach()?;
        let (logs, blobs) = (store.logs().clone(), store.blobs().clone());
        let (context, refusals) = (Arc::new(context), run::in_words as run::Refusals);
        Ok(Engine {
            context,
            store,
            logs,
            blobs,
            refusals,
            in_hand: Arc::default(),
            parked: Arc::default(),
            closing: Arc::default(),
            notifier: None,
            workdirs: Arc::default(),
            ids_passed: Arc::default(),
            turns: Arc::default(),
            org_names: Arc::default(),
            links: Arc::default(),
            orchestrator: Arc::default(),
            executor: None,
            pinning: Arc::default(),
            documents: None,
        })
    }

    /// How calls of functions are executed here.
    pub fn executing(mut self, executor: execution::Executor) -> Engine {
        self.executor = Some(Arc::new(executor));
        self
    }

    /// How the document of a run is read.
    pub fn reading(mut self, documents: call::ReadDocument) -> Engine {
        self.documents = Some(documents);
        self
    }

    /// What is started for each new ticket and approval, and how long it may take.
    pub fn notifying(mut self, program: Arc<dyn Tool>, timeout_ms: i64) -> Engine {
        self.notifier = Some(notify::Notifier { program, timeout_ms });
        self
    }

    /// How refusals are written down for the repetitions of their request.
    pub fn refusing(mut self, refusals: run::Refusals) -> Engine {
        self.refusals = refusals;
        self
    }
}
