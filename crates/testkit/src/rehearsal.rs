//! Fills a database by the real engine, without a control plane or a machine: for benchmarks that need many runs, or the exact
//! statements of a submission. The benchmark provides the runtime and the clock.

use crate::bare;
use engine::adapters::FakeProvider;
use engine::adapters::fake::{FakeSettings, Fate};
use engine::run::{Render, Submission};
use engine::{Config, Engine, EngineContext, Presence, Provider};
use model::spec::{Command, RunSpec};
use model::{Credits, Failure, OrgId};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
pub use store::Database;
use store::idempotency::Key;
use store::token::Scope;
use store::{Installation, Lane, Options, Store, Tx, WorkKind};

/// As the local provider calls itself, so that a control plane may go on with what was rehearsed.
const LOCAL: &str = "local";
/// Runs that reserve money must find some.
const PLENTY: Credits = Credits(1_000_000_000_000_000);

#[derive(Clone)]
pub struct Rehearsal {
    pub(crate) engine: Engine,
    pub(crate) org: OrgId,
    recording: Arc<bare::Recording>,
}

impl Rehearsal {
    /// In the home of a control plane that is not running; `heard`: statements are recorded.
    pub async fn open(home: &Path, database: Database, heard: bool) -> Result<Rehearsal, Failure> {
        let recording = Arc::new(bare::Recording::default());
        let mut options = Options::new(database);
        options.blobs = Some(home.join("blobs"));
        options.recorder = heard.then(|| recording.clone().recorder());
        let mut settings = FakeSettings { name: LOCAL.into(), ..FakeSettings::default() };
        settings.capabilities.regions = vec![LOCAL.into()];
        settings.capabilities.max_instances = 1;
        let provider: Arc<dyn Provider> = Arc::new(FakeProvider::new(settings, Box::new(|_, _| Fate::Obey)));
        let mut config = Config::default();
        config.money.first_topup = PLENTY;
        config.calls.adapters = Some(vec!["dml-exec-*".to_owned()]);
        let store = Store::open(&options)?;
        let context = EngineContext {
            config,
            installation: Installation::open(home)?,
            providers: BTreeMap::from([(LOCAL.to_owned(), provider)]).into(),
            tools: Default::default(),
            models: Default::default(),
            control_urls: engine::ControlUrls::only("unix:/nowhere"),
            control_ca: None,
            presence: Presence::default(),
            blob_source: store.blobs().source(),
            timer: Arc::new(crate::time::Now::new(0)), // nothing here waits for an act
        };
        let engine = Engine::new(context, store)?;
        let org = engine.ensure_org("default").await?;
        Ok(Rehearsal { engine, org, recording })
    }

    /// The submission that the bench sends over the API too. Without `start` it rests as created.
    pub async fn submit(&self, number: usize, start: bool) -> Result<(), Failure> {
        let submission =
            Submission { org: self.org, by: None, name: None, spec: spec("true"), plans: Default::default(), start };
        let route = "POST /api/v1/runs".to_owned();
        let key =
            Key { org: self.org, route, key: format!("rehearsal-{number:026}"), hash: [7; 32], request: String::new() };
        let render: Render = Arc::new(|picture| serde_json::to_vec(&picture.run).expect("a run is plain data"));
        self.engine.submit(submission, Some(key), render).await.map(drop)
    }

    /// A token for everything in an org of this name, which is made if there is none.
    pub async fn token_of(&self, org: &str) -> Result<String, Failure> {
        let org = self.engine.ensure_org(org).await?;
        let token = self.engine.create_token(org, "owner".to_owned(), Scope::Admin, None, None).await?;
        Ok(token.1)
    }

    /// What submissions have said to the database since the last call.
    pub fn heard(&self) -> Vec<bare::Said> {
        self.recording.take().into_iter().filter(|said| said.name == "run.submit").collect()
    }

    /// Everything that is open is to be looked at, now.
    pub async fn wake_everybody(&self) -> Result<(), Failure> {
        const AT_ONCE: i64 = 200;
        let mut after = 0;
        loop {
            let page = move |tx: &mut Tx| store::run::ids_after(tx, after, AT_ONCE);
            let ids = self.engine.store.read("rehearsal.page", page).await?;
            let Some(last) = ids.last() else { return Ok(()) };
            after = last.0;
            let wake = move |tx: &mut Tx| {
                let at = tx.at();
                ids.iter().for_each(|id| tx.wake(WorkKind::Run, id.0, at));
                Ok(())
            };
            self.engine.store.write(Lane::Low, "rehearsal.wake", wake).await?;
        }
    }
}

fn spec(command: &str) -> RunSpec {
    RunSpec {
        max_duration_ms: Some(model::spec::DEFAULT_MAX_DURATION_MS),
        ..RunSpec::task(Command::Shell(command.to_owned()), LOCAL, LOCAL)
    }
}
