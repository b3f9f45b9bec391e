//! A control-plane process from start to end: opens the store, listens, works, and stops without failing a run.

use crate::hub::Hub;
use crate::pages::Pages;
use crate::settings::{Role, Settings};
use crate::tls::Tls;
use crate::token_cache::TokenCache;
use crate::{AppState, Shared, listen, now_ms, relay, routes, tools, worker};
use engine::adapters::tool::address::OwnAddresses;
use engine::{Database, Engine, Installation, Options, Presence, Scope, Store, Token};
use model::{Failure, Refused, Trouble, TroubleKind, crash_point};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use wire::api::TokenView;

const DEFAULT_ORG: &str = "default";
/// The name of the tokens that a home gets without asking for them.
const OWNER: &str = "owner";
/// How long open answers may take to end once the process closes.
const LEAVES_WITHIN: Duration = Duration::from_secs(5);

/// What a process says when it answers requests.
#[derive(Debug)]
pub struct Ready {
    /// Of the API over TCP.
    pub url: Option<String>,
    /// Only when it was made by this start.
    pub first_token: Option<FirstToken>,
    /// Reachable from other machines, and not encrypted.
    pub is_readable_by_others: bool,
}

/// The token of the owner, who may do everything.
#[derive(Debug)]
pub struct FirstToken {
    pub text: String,
    pub file: PathBuf,
}

/// Runs until SIGTERM, SIGINT, a request to stop, or (embedded) until nothing has been left to do for a while.
/// `ready` is called once requests are answered; what it returns is kept until the end.
pub async fn run<G>(settings: Settings, ready: impl FnOnce(Ready) -> G + Send + 'static) -> Result<(), Failure> {
    let tls = settings.tls.clone().map(Tls::open).transpose()?;
    let tcp = match &settings.listen {
        Some(address) if settings.role != Role::Worker => Some(bind(address).await?),
        _ => None,
    };
    let address = tcp.as_ref().and_then(|tcp| tcp.local_addr().ok());
    let scheme = if tls.is_some() { "https" } else { "http" };
    let url = address.map(|at| format!("{scheme}://{at}"));
    let is_readable_by_others = tls.is_none() && address.is_some_and(|at| !at.ip().to_canonical().is_loopback());
    let own = OwnAddresses::default();
    let engine = open(&settings, url.as_deref(), address, &own)?;
    if settings.restored {
        // Above what the newer database gave out, unless that was more than one number each ms since 1970.
        engine.store.pass_ids(now_ms()).await?;
    }
    engine.open_providers().await?;
    let (closing, _) = watch::channel(false);
    let hub = Hub::start(&engine.store);
    crate::provider::follow(&hub, engine.clone());
    let state: Shared = Arc::new(AppState {
        tokens: TokenCache::start(&hub),
        hub,
        engine: engine.clone(),
        sources: Default::default(),
        limits: Default::default(),
        started_at: now_ms(),
        url: url.clone(),
        closing,
        asked_at: AtomicI64::new(now_ms()),
        requests: AtomicI64::new(1),
        failures: AtomicI64::new(0),
        pages: Pages::new(settings.config.pages.clone(), settings.public_url.clone(), tls.is_some(), own),
        doctor: (settings.doctor, settings.home.clone()),
    });
    crate::pages::follow(&state);
    engine.answer_links(relay::dialler(&state, &settings));
    let first_token = match settings.role {
        Role::Worker => None,
        Role::All | Role::Server => first_token(&engine, &settings.home).await?,
    };
    let mut tasks = tokio::task::JoinSet::new();
    if settings.role != Role::Worker {
        tasks.spawn(worker::remember(engine.clone(), state.closing.subscribe()));
    }
    if settings.role != Role::Server {
        engine.look_for_everyone().await?;
        let (engine, closing) = (engine.clone(), state.closing.subscribe());
        let name = worker_name(&settings);
        tasks.spawn(async move {
            if let Err(failure) = worker::work(engine, name, closing).await {
                tracing::error!(%failure, "the worker ended");
            }
        });
    }
    if let Some(socket) = settings.socket.as_ref().filter(|_| settings.role != Role::Worker) {
        let listener = bind_socket(socket)?;
        let (app, closing) = (routes::router(state.clone()), state.closing.subscribe());
        tasks.spawn(listen::unix(listener, app, closing));
    }
    if let Some(tcp) = tcp {
        let (app, closing) = (routes::with_pages(state.clone()), state.closing.subscribe());
        tasks.spawn(listen::tcp(tcp, tls, app, listen::Bounds::default(), closing));
    }
    // Before the address is announced, so that a signal that comes at once also ends it orderly.
    let signals = Signals::catch();
    let guard = ready(Ready { url, first_token, is_readable_by_others });
    until_told(&state, signals, settings.embedded).await;
    state.closing.send_replace(true);
    let left = tokio::time::timeout(LEAVES_WITHIN, async { while tasks.join_next().await.is_some() {} }).await;
    if left.is_err() {
        tracing::info!("some answers were cut: their askers come again");
    }
    drop(guard);
    Ok(())
}

/// `own` gets the addresses that tools must not connect to.
fn open(
    settings: &Settings,
    url: Option<&str>,
    listening: Option<SocketAddr>,
    own: &OwnAddresses,
) -> Result<Engine, Failure> {
    let database = settings.database()?;
    let mut options = Options::new(database.clone());
    options.blobs = Some(settings.blobs()?);
    options.lease_ms = settings.config.timings.lease_ms;
    options.group = settings.config.store.group.unwrap_or(options.group);
    // Machines that an earlier database has named may still be there: what this one names is beyond all of them.
    if Installation::exists(&settings.home) {
        options.first_id = crate::now_ms();
    }
    let store = Store::open(&options)?;
    let installation = Installation::open(&settings.home)?;
    let models = tools::models(settings, &|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    let control_urls = settings.control_urls(url)?;
    tools::own_addresses(listening, &control_urls).into_iter().for_each(|address| own.add(address));
    let state = engine::EngineContext {
        config: settings.engine_config(),
        installation,
        providers: settings.providers()?,
        tools: tools::tools(settings, &models, own.clone())?,
        models,
        control_urls,
        control_ca: settings.ca_cert.as_deref().map(authorities).transpose()?,
        // One process owns a SQLite file; on PostgreSQL others may talk to the same runners.
        presence: match database {
            Database::Postgres(_) => Presence::default(),
            _ => Presence::alone(),
        },
        blob_source: store.blobs().source(),
        timer: Arc::new(crate::worker::Clockwork),
    };
    let engine = Engine::new(state, store)?.refusing(crate::problem::remembered).executing(settings.executor()?);
    let engine = engine.reading(crate::call::document);
    Ok(match settings.notifier()? {
        Some((notifier, timeout_ms)) => engine.notifying(Arc::new(notifier), timeout_ms),
        None => engine,
    })
}

pub(crate) fn authorities(path: &Path) -> Result<String, Failure> {
    let read = std::fs::read_to_string(path);
    read.map_err(|error| Refused::invalid("ca_cert", format!("cannot read `{}`: {error}", path.display())).into())
}

async fn bind(address: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Refused::Conflict {
            why: format!("{address} is taken by another process: choose another --listen, or stop it"),
        }
        .into(),
        _ => Refused::invalid("listen", format!("cannot listen on `{address}`: {error}")).into(),
    })
}

/// The process that holds the home's lock owns the socket: a file that is there is left over from an earlier process.
fn bind_socket(path: &Path) -> Result<UnixListener, Failure> {
    let trouble = |error: std::io::Error| {
        Trouble::new(TroubleKind::Internal, format!("cannot listen on {}: {error}", path.display()))
    };
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(trouble(error).into()),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(trouble)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(trouble)?;
    Ok(listener)
}

/// The owner's token, made with the org when the home has none that is good; none if it was there.
async fn first_token(engine: &Engine, home: &Path) -> Result<Option<FirstToken>, Failure> {
    let org = engine.ensure_org(DEFAULT_ORG).await?;
    let path = home.join("token");
    if let Ok(text) = std::fs::read_to_string(&path)
        && engine.check_token(text.trim()).await.is_ok()
    {
        return Ok(None);
    }
    let (_, token) = engine.create_token(org, OWNER.into(), Scope::Admin, None, None).await?;
    let trouble = |error: std::io::Error| {
        Trouble::new(TroubleKind::Internal, format!("cannot write {}: {error}", path.display()))
    };
    // Of this process alone: two servers of one home may start at the same moment, and either's token is good.
    let draft = home.join(format!("token.{}.new", std::process::id()));
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)
        .map_err(trouble)?;
    file.write_all(token.as_bytes()).and_then(|()| file.sync_all()).map_err(trouble)?;
    crash_point!("token.file", std::fs::rename(&draft, &path)).map_err(trouble)?;
    Ok(Some(FirstToken { text: token, file: path }))
}

/// A further token of the owner's; those that are there stay good.
pub(crate) async fn fresh_owner_token(engine: &Engine) -> Result<(Token, String), Failure> {
    let org = engine.ensure_org(DEFAULT_ORG).await?;
    engine.create_token(org, OWNER.into(), Scope::Admin, None, None).await
}

/// The same without a server: for the owner of a database that several processes may open.
pub async fn make_owner_token(settings: &Settings) -> Result<TokenView, Failure> {
    let engine = open(settings, None, None, &OwnAddresses::default())?;
    let (token, shown) = fresh_owner_token(&engine).await?;
    Ok(crate::token::view(&token, Some(shown)))
}

/// What proves to the server of this home that its owner asks.
pub fn owner_proof(home: &Path) -> Result<String, Failure> {
    Ok(Installation::open(home)?.owner_proof())
}

/// On SQLite there is one worker with a fixed name, so that its restart frees all its items at once; on PostgreSQL every process has its own.
fn worker_name(settings: &Settings) -> String {
    match settings.database() {
        Ok(Database::Postgres(_)) => format!("{}-{}", std::process::id(), now_ms()),
        _ => "only".into(),
    }
}

struct Signals {
    term: Signal,
    interrupt: Signal,
}

impl Signals {
    fn catch() -> Option<Signals> {
        let (term, interrupt) = (signal(SignalKind::terminate()).ok()?, signal(SignalKind::interrupt()).ok()?);
        Some(Signals { term, interrupt })
    }
}

async fn until_told(state: &Shared, signals: Option<Signals>, embedded: bool) {
    let Some(Signals { mut term, mut interrupt }) = signals else {
        return tracing::error!("signals cannot be caught here");
    };
    let mut closing = state.closing.subscribe();
    tokio::select! {
        _ = term.recv() => tracing::info!("told to end"),
        _ = interrupt.recv() => tracing::info!("interrupted"),
        () = listen::closed(&mut closing) => {}
        () = nothing_left(state), if embedded => tracing::info!("nothing was left to do"),
    }
}

/// Returns when no request has arrived and nothing was open or held for the whole idle time.
async fn nothing_left(state: &Shared) {
    let idle = state.engine.context.config.timings.embedded_idle_ms;
    loop {
        let quiet = now_ms() - state.asked_at.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis((idle - quiet).clamp(1_000, 60_000) as u64)).await;
        if now_ms() - state.asked_at.load(Ordering::Relaxed) < idle {
            continue;
        }
        match state.engine.remains().await {
            Ok(remains) if remains.runs == 0 && remains.instances == 0 && remains.held == 0 => return,
            Ok(_) => {}
            Err(failure) => tracing::warn!(%failure, "what is left could not be counted"),
        }
    }
}
