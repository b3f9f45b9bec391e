//! `repl run`: from flags and a run file to a submitted run, followed to its end. Ctrl-C detaches and never cancels.

use crate::complaint::{Complaint, DETACHED, Done};
use crate::control_plane::{ControlPlane, new_key};
use crate::live::Live;
use crate::settings::Settings;
use crate::stdin::{self, Piped};
use crate::summary::{self, Sending};
use crate::upload::{self, Files, Missing, Source};
use crate::{artifact, drawing, follow, lookup, meant, orphan, provider, quantity, run_file, show};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use wire::api::{
    AgentsPlan, AttemptView, CacheBody, CacheTermsBody, Plan, RunView, SandboxBody, SandboxTermsBody, Submit,
};
use wire::model::{Credits, spec};

/// More than this is rarely meant; on a terminal we ask first.
const MANY_FILES: usize = 10_000;
const MANY_BYTES: i64 = 1 << 30;
/// A policy allows 100 of them.
const MOST_ATTEMPTS: usize = 1_000;

/// Submit a run and follow it: its output here, its exit code ours
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl run -c 'echo hello'
  repl run --file train.py --artifact 'out/*' -c 'python3 train.py'
  repl run --cpu 2 --memory 4GB --max-duration 2h -- make -j2 test
  repl run train.repl.yml --env EPOCHS=5 --detach
  sort names.txt | repl run -i -c 'uniq -c'
  repl run --cache --file src -- make test    # the second time, an answer

Exit codes: the work's own; 128 + n after signal n; 124 after --max-duration;
143 cancelled; 130 detached by Ctrl-C; 1 refused, or no code; 2 wrong use, or no
control plane.")]
pub struct RunArgs {
    /// A run file (*.repl.yml); flags are stronger than what it says
    file: Option<PathBuf>,
    /// What to run, by `sh -c`
    #[arg(short, long, value_name = "CMD", conflicts_with = "argv")]
    command: Option<String>,
    /// What to run, word by word, without a shell
    #[arg(last = true, value_name = "ARGV")]
    argv: Vec<String>,
    /// A name to find it by; unique among open runs
    #[arg(long)]
    name: Option<String>,
    /// A variable for the run; without a value, the one it has here
    #[arg(long = "env", short = 'e', value_name = "K[=V]")]
    env: Vec<String>,
    /// A file or folder to send; .gitignore is respected
    #[arg(long = "file", short = 'f', value_name = "PATH[:DEST]")]
    files: Vec<String>,
    /// Send what links lead to instead of the links
    #[arg(long)]
    follow_links: bool,
    /// What is piped in here becomes the command's standard input, up to 1 GiB
    #[arg(long, short = 'i')]
    stdin: bool,
    /// Folder below the run's own in which to start
    #[arg(long, value_name = "DIR")]
    workdir: Option<String>,
    /// Start with the files of this snapshot in the run's folder
    #[arg(long)]
    snapshot: Option<String>,
    /// Keep the run's folder as a snapshot when it has ended well
    #[arg(long)]
    save_snapshot: bool,
    /// Processors, e.g. 2 or 0.5
    #[arg(long, value_parser = quantity::cpu, allow_negative_numbers = true)]
    cpu: Option<i64>,
    /// Memory, e.g. 512MB or 2GB
    #[arg(long, value_parser = quantity::memory, allow_negative_numbers = true)]
    memory: Option<i64>,
    /// GPUs, e.g. a100, a100:2, or 2 of any kind
    #[arg(long, value_name = "KIND[:N]", value_parser = quantity::gpu)]
    gpu: Option<String>,
    /// Where its machine comes from; `repl provider ls` lists what is set up
    #[arg(long)]
    provider: Option<String>,
    /// A machine that may be taken away at any time will do
    #[arg(long)]
    spot: bool,
    #[arg(long, help = "Region of the provider")]
    region: Option<String>,
    /// Longest time it may run, e.g. 90s or 2h30m
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration, allow_negative_numbers = true)]
    max_duration: Option<i64>,
    /// Time between being asked to stop and being killed
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration, allow_negative_numbers = true)]
    stop_duration: Option<i64>,
    /// How long its folder is kept afterwards
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration, allow_negative_numbers = true)]
    hold: Option<i64>,
    /// Most it may cost, over all its attempts
    #[arg(long, value_name = "CREDITS", value_parser = quantity::credits, allow_negative_numbers = true)]
    budget: Option<String>,
    /// Attempts, the first included, after errors and interruptions
    #[arg(long, value_name = "N", value_parser = quantity::attempts, allow_negative_numbers = true)]
    retry: Option<i64>,
    /// Pause before a new attempt after an error; otherwise 100ms, then twice as long each time
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration, allow_negative_numbers = true)]
    retry_delay: Option<i64>,
    #[arg(long, value_parser = ["high", "normal"], help = "Whom it goes before in the queue")]
    priority: Option<String>,
    /// Submitting twice with the same key makes one run
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// A feature of the control plane's settings that the machine must have
    #[arg(long = "feature", value_name = "NAME")]
    features: Vec<String>,
    /// Files of its folder to keep afterwards, e.g. 'out/*'
    #[arg(long = "artifact", short = 'a', value_name = "GLOB")]
    artifacts: Vec<String>,
    /// An input of a run of agents; VALUE may be JSON
    #[arg(long = "input", value_name = "NAME=VALUE")]
    inputs: Vec<String>,
    /// A secret to hand over as a variable of the same name
    #[arg(long = "secret", value_name = "NAME")]
    secrets: Vec<String>,
    /// One stream for stdout and stderr, in their exact order
    #[arg(long)]
    merge: bool,
    /// Run it in a sandbox: it sees no files of yours but its own; with `=none` it has no network either
    #[arg(long, value_name = "NETWORK", num_args = 0..=1, require_equals = true, default_missing_value = "host", value_parser = ["host", "none"])]
    sandbox: Option<String>,
    /// Run it without a sandbox, whatever the settings say
    #[arg(long, conflicts_with = "sandbox")]
    no_sandbox: bool,
    /// Answer with the result of an earlier run that was the same, and keep this one's
    #[arg(long)]
    cache: bool,
    /// Part of the key: another salt, another result
    #[arg(long, value_name = "TEXT")]
    cache_salt: Option<String>,
    /// A kept result whose exit code is not 0 is an answer, too
    #[arg(long)]
    cache_errors: bool,
    /// Run it, whatever the run file says about a cache
    #[arg(long, conflicts_with_all = ["cache", "cache_salt", "cache_errors"])]
    no_cache: bool,
    /// Submit, say the id and do not follow
    #[arg(long, short)]
    detach: bool,
    /// Show what would happen: where, with which limits, at what price; nothing is sent or started
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before sending very many or very large files, nor warn of orphans
    #[arg(long, short)]
    yes: bool,
    /// Do not warn of resources at providers that no record here explains
    #[arg(long)]
    no_preflight: bool,
    /// With --detach or --dry-run: the run as JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(settings: &Settings, args: RunArgs) -> Done {
    if args.json && !args.detach && !args.dry_run {
        return Err(Complaint::usage("--json needs --detach or --dry-run: otherwise stdout is the work's")
            .fix("repl run --detach --json …, then repl status RUN --json"));
    }
    if let Some(path) = &args.file {
        meant::check(path, &crate::words())?;
    }
    let env = |name: &str| std::env::var(name).ok();
    let (mut submit, sources) = wanted(&args, &env)?;
    if submit.plan.is_none() {
        if submit.provider.is_none() && submit.providers.is_empty() {
            submit.unasked.clone_from(&settings.unasked);
        }
        run_file::fill(&mut submit, &settings.run);
    }
    let files = upload::walk(&sources, args.follow_links)?;
    if let Some(hint) = start_folder(&submit, &files, Path::new(""))? {
        eprintln!("repl: hint: {hint}");
    }
    confirm(&args, &files)?;
    let paths = sources.into_iter().map(|source| source.path).collect();
    let is_cached = submit.cache.as_ref().is_some_and(|cache| *cache != CacheBody::Flag(false));
    let hashed = upload::hash(&files, is_cached, &settings.home.join("hashes"), paths).await?;
    submit.files = hashed.as_ref().map(|hashed| hashed.root.clone());
    let piped = if args.stdin { Some(stdin::read()?) } else { None };
    submit.stdin = piped.as_ref().map(Piped::body);
    let mut hint = stdin::Hint::unless(args.stdin || args.dry_run);
    hint.give_if_due();
    let key = match &args.idempotency_key {
        Some(key) => key.clone(),
        None => new_key()?,
    };

    // From here on Ctrl-C means: I do not want to watch. Before it, nothing has happened yet.
    let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())
        .map_err(|error| Complaint::refused(format!("cannot listen for Ctrl-C: {error}")))?;
    let submitted = async {
        let plane = ControlPlane::reach(settings).await?;
        if args.dry_run && submit.plan.is_some() {
            let plan: AgentsPlan = plane.question("/runs", &submit).await?;
            return Ok(Submitted::PlannedAgents(plan));
        }
        if args.dry_run {
            let mut plan: Plan = plane.question("/runs", &submit).await?;
            if let Some(hashed) = &hashed {
                let unsent = Missing::ask(&plane, hashed).await?.amount(hashed);
                plan.files.to_send = Some(plan.files.to_send.unwrap_or(0) + unsent.blobs as i64);
                plan.files.bytes_to_send = Some(plan.files.bytes_to_send.unwrap_or(0) + unsent.bytes);
            }
            return Ok(Submitted::Planned(Box::new(plan)));
        }
        if !args.yes && !args.no_preflight {
            orphan::preflight(&plane).await;
        }
        let missing = match &hashed {
            Some(hashed) => Missing::ask(&plane, hashed).await?,
            None => Missing::default(),
        };
        if !missing.is_empty() || piped.is_some() {
            // What would be refused is refused before the first byte travels.
            let _: serde_json::Value = plane.question("/runs", &Submit { dry_run: true, ..submit.clone() }).await?;
        }
        if let Some(piped) = &piped {
            stdin::send(&plane, piped).await?;
        }
        let sending = match &hashed {
            Some(hashed) => Some(upload::send(&plane, hashed, missing).await?),
            None => None,
        };
        let run: RunView = plane.post_keyed("/runs", &submit, &key).await?;
        Done::Ok(Submitted::Accepted(Box::new((plane, run, sending))))
    };
    let submitted = tokio::select! {
        submitted = submitted => submitted.map_err(|complaint| in_flags(complaint, args.file.is_some()))?,
        _ = interrupt.recv() => {
            eprintln!("repl: interrupted while submitting; if it was accepted, `repl ps` shows it");
            return Ok(DETACHED);
        }
    };
    let (plane, view, sending) = match submitted {
        Submitted::PlannedAgents(plan) => return drawing::dry_run(&plan, &submit, args.json),
        Submitted::Planned(plan) => return summary::dry_run(&plan, &submit, args.json),
        Submitted::Accepted(accepted) => *accepted,
    };
    lookup::remember(&plane, &view.id);
    provider::say_what_sleep_does(&plane, &submit).await;
    if args.detach {
        return detached(&view, sending, args.json);
    }
    let live = Live::new(&format!("{} · submitted", view.id));
    if plane.started_here {
        live.say(&format!("started a control plane in {}", settings.home.display()));
    }
    tokio::select! {
        ended = follow::run(&plane, &view.id, view.kind == "agents", &live) => {
            let ended = ended.map_err(|complaint| still_there(complaint, &view.id))?;
            hint.give_if_due();
            let in_all = in_all(&plane, &ended).await;
            let has_artifacts = if submit.artifacts.is_empty() { None } else { artifact::are_there(&plane, &ended.id).await };
            let sending = Sending { sent: sending, submit: Some(&submit), files: Some(&files), in_all, has_artifacts };
            summary::print_output(&ended);
            summary::print(&ended, &sending, live.is_terminal());
            Ok(summary::exit_code(&ended))
        }
        _ = interrupt.recv() => Ok(detach(&view.id, &live)),
    }
}

/// Names a refused field as the user wrote it: by the flag, or by the key of the run file.
fn in_flags(complaint: Complaint, has_file: bool) -> Complaint {
    let all = || run_file::keys::RESOURCES.iter().chain(run_file::keys::TASK);
    let Some((field, why)) = complaint.text.split_once(": ") else { return complaint };
    let key = match field {
        "retry.delay" => run_file::keys::RETRY.iter().find(|key| key.name == "delay"),
        _ => all().find(|key| key.name == field),
    };
    let Some((key, flag)) = key.and_then(|key| Some((key, key.flag?))) else { return complaint };
    let text = if has_file { format!("{flag} (`{field}` in a run file): {why}") } else { format!("{flag}: {why}") };
    use run_file::keys::Value;
    // An example helps with the form of a value. It does not help where the value names what there is not, like a snapshot.
    let has_form = matches!(
        key.value,
        Value::Name
            | Value::Duration
            | Value::Memory
            | Value::Cpu
            | Value::Gpu
            | Value::Credits
            | Value::OneOf(_)
            | Value::Attempts
            | Value::Retry(_)
    );
    let fix = match &complaint.fix {
        Some(fix) => fix.clone(),
        None if has_form => format!("write it like {flag} {}", key.example),
        None => format!("change {flag}"),
    };
    Complaint { text, fix: Some(fix), ..complaint }
}

/// What became of a submission.
enum Submitted {
    /// It was only asked what it would be.
    Planned(Box<Plan>),
    PlannedAgents(AgentsPlan),
    Accepted(Box<(ControlPlane, RunView, Option<upload::Sent>)>),
}

/// Follow a run from its first output to its end, and exit with its code
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl attach
  repl attach run_9ix > output.txt")]
pub struct AttachArgs {
    /// Id, beginning of an id, name, or @last
    #[arg(default_value = lookup::LAST)]
    run: String,
}

pub async fn attach(settings: &Settings, args: AttachArgs) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let run = lookup::run(&plane, &args.run).await?;
    let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())
        .map_err(|error| Complaint::refused(format!("cannot listen for Ctrl-C: {error}")))?;
    let kind = plane.get::<RunView>(&format!("/runs/{run}")).await?.kind;
    let live = Live::new(&format!("{run} · asking for its output"));
    tokio::select! {
        ended = follow::run(&plane, &run, kind == "agents", &live) => {
            let ended = ended?;
            let sending = Sending { in_all: in_all(&plane, &ended).await, ..Sending::default() };
            summary::print_output(&ended);
            summary::print(&ended, &sending, live.is_terminal());
            Ok(summary::exit_code(&ended))
        }
        _ = interrupt.recv() => Ok(detach(&run, &live)),
    }
}

/// What all attempts cost together, if there were several: a run shows what its last one cost.
async fn in_all(plane: &ControlPlane, run: &RunView) -> Option<String> {
    if run.attempt_number < 2 {
        return None;
    }
    let attempts: Vec<AttemptView> = plane.list(&format!("/runs/{}/attempts", run.id), MOST_ATTEMPTS).await.ok()?;
    Some(Credits(attempts.iter().map(|attempt| attempt.credits_charged_micro).sum()).to_string())
}

fn detach(run: &str, live: &Live) -> u8 {
    live.done();
    if live.is_terminal() {
        // Behind the ^C that the terminal shows.
        eprintln!();
    }
    eprintln!("repl: detached; {run} goes on. Come back: repl attach {run} · end it: repl cancel {run}");
    DETACHED
}

/// Losing sight of a run is not losing the run.
fn still_there(complaint: Complaint, run: &str) -> Complaint {
    let fix = complaint.fix.clone().map(|fix| format!("{fix}; ")).unwrap_or_default();
    complaint.fix(format!("{fix}{run} was accepted: repl attach {run}"))
}

fn detached(run: &RunView, sending: Option<upload::Sent>, json: bool) -> Done {
    if json {
        return show::json(run);
    }
    println!("{}", run.id);
    if std::io::stderr().is_terminal() {
        if let Some(sent) = sending {
            eprintln!("repl: {}", summary::travelled(sent, None));
        }
        eprintln!("repl: follow it: repl attach {} · end it: repl cancel {}", run.id, run.id);
    }
    Ok(0)
}

/// What the file says, overruled by flags.
fn wanted(args: &RunArgs, env: &dyn Fn(&str) -> Option<String>) -> Done<(Submit, Vec<Source>)> {
    let mut sources = Vec::new();
    let mut submit = Submit::default();
    if let Some(path) = &args.file {
        let file = run_file::read(path, env)?;
        submit = file.submit;
        for entry in &file.files {
            sources.push(upload::source(entry, &file.folder)?);
        }
    }
    for entry in &args.files {
        sources.push(upload::source(entry, Path::new(""))?);
    }
    if submit.plan.is_some() {
        return Ok((agents_wanted(args, submit)?, sources));
    }
    if !args.inputs.is_empty() {
        return Err(Complaint::usage("--input is for runs of agents: this one has no inputs")
            .fix("hand values over as variables: --env NAME=VALUE"));
    }
    command(args, &mut submit)?;
    for entry in &args.env {
        let (name, value) = quantity::variable(entry, env).map_err(|why| Complaint::value("--env", &why))?;
        spec::check_variable(&name)
            .map_err(|why| Complaint::value("--env", &why).fix("choose another name, like --env NAME=value"))?;
        submit.env.insert(name, value);
    }
    submit.kind.get_or_insert_with(|| "task".to_owned());
    stronger(&mut submit.name, &args.name);
    stronger(&mut submit.working_dir, &args.workdir);
    stronger(&mut submit.snapshot, &args.snapshot);
    submit.save_snapshot |= args.save_snapshot;
    stronger(&mut submit.resources.cpu_milli, &args.cpu);
    stronger(&mut submit.resources.memory_bytes, &args.memory);
    stronger(&mut submit.resources.gpu, &args.gpu);
    submit.spot |= args.spot;
    stronger(&mut submit.provider, &args.provider);
    stronger(&mut submit.region, &args.region);
    stronger(&mut submit.max_duration_ms, &args.max_duration);
    stronger(&mut submit.stop_duration_ms, &args.stop_duration);
    stronger(&mut submit.hold_ms, &args.hold);
    stronger(&mut submit.budget, &args.budget);
    stronger(&mut submit.priority, &args.priority);
    stronger(&mut submit.retry, &args.retry.map(run_file::retry_on_error));
    if args.retry_delay.is_some() {
        let retry = submit.retry.as_mut().ok_or_else(|| {
            Complaint::usage("--retry-delay says how long to wait, and nothing says how often to try")
                .fix("add --retry 3")
        })?;
        retry.delay_ms = args.retry_delay;
    }
    submit.artifacts.extend(args.artifacts.iter().cloned());
    submit.artifacts.iter().try_for_each(|glob| artifact::pattern(glob).map(drop))?;
    submit.secrets.extend(args.secrets.iter().cloned());
    submit.features.extend(args.features.iter().cloned());
    submit.merge |= args.merge;
    if let Some(network) = &args.sandbox {
        submit.sandbox = Some(SandboxBody::Terms(SandboxTermsBody { network: network.clone() }));
    } else if args.no_sandbox {
        submit.sandbox = Some(SandboxBody::Flag(false));
    }
    cached(args, &mut submit);
    submit.start = true;
    submit.dry_run = args.dry_run;
    Ok((submit, sources))
}

/// A flag about the cache asks for it.
fn cached(args: &RunArgs, submit: &mut Submit) {
    if args.no_cache {
        submit.cache = None;
    }
    if !(args.cache || args.cache_errors || args.cache_salt.is_some()) {
        return;
    }
    let mut terms = match submit.cache.take() {
        Some(CacheBody::Terms(terms)) => terms,
        _ => CacheTermsBody::default(),
    };
    terms.errors |= args.cache_errors;
    if let Some(salt) = &args.cache_salt {
        terms.salt.clone_from(salt);
    }
    submit.cache = Some(CacheBody::Terms(terms));
}

/// What flags say of a run of agents. The rest is said in its plan.
fn agents_wanted(args: &RunArgs, mut submit: Submit) -> Done<Submit> {
    let in_file = [
        ("-c and ARGV", args.command.is_some() || !args.argv.is_empty()),
        ("--env", !args.env.is_empty()),
        ("--workdir", args.workdir.is_some()),
        ("--cpu and --memory", args.cpu.is_some() || args.memory.is_some()),
        ("--gpu and --spot", args.gpu.is_some() || args.spot),
        ("--provider and --region", args.provider.is_some() || args.region.is_some()),
        ("--retry", args.retry.is_some() || args.retry_delay.is_some()),
        ("--secret", !args.secrets.is_empty()),
        ("--sandbox and --no-sandbox", args.sandbox.is_some() || args.no_sandbox),
    ];
    let of_tasks = [
        ("--stdin", args.stdin),
        ("--snapshot and --save-snapshot", args.snapshot.is_some() || args.save_snapshot),
        ("--cache", args.cache || args.cache_errors || args.cache_salt.is_some()),
        ("--stop-duration", args.stop_duration.is_some()),
        ("--hold", args.hold.is_some()),
        ("--artifact", !args.artifacts.is_empty()),
        ("--feature", !args.features.is_empty()),
        ("--merge", args.merge),
    ];
    if let Some((flags, _)) = in_file.iter().find(|(_, said)| *said) {
        return Err(Complaint::usage(format!("{flags}: a run of agents says that in its file, agent by agent"))
            .fix("see `repl schema agents`; --input NAME=VALUE hands values over"));
    }
    if let Some((flags, _)) = of_tasks.iter().find(|(_, said)| *said) {
        return Err(Complaint::usage(format!("{flags}: not for runs of agents")).fix("leave it out"));
    }
    let (Some(plan), Some(path)) = (&mut submit.plan, &args.file) else { return Ok(submit) };
    for entry in &args.inputs {
        run_file::agents::give_input(plan, entry)?;
    }
    for warning in run_file::check_plan(path, plan)?.warnings {
        eprintln!("repl: hint: {warning}");
    }
    stronger(&mut submit.name, &args.name);
    stronger(&mut submit.max_duration_ms, &args.max_duration);
    stronger(&mut submit.budget, &args.budget);
    stronger(&mut submit.priority, &args.priority);
    submit.start = true;
    submit.dry_run = args.dry_run;
    Ok(submit)
}

fn stronger<T: Clone>(field: &mut Option<T>, flag: &Option<T>) {
    if flag.is_some() {
        field.clone_from(flag);
    }
}

/// What to run: the command line wins over the file, like every other flag.
fn command(args: &RunArgs, submit: &mut Submit) -> Done<()> {
    if args.command.is_some() || !args.argv.is_empty() {
        submit.commands = args.command.iter().cloned().collect();
        submit.argv = args.argv.clone();
    }
    if submit.commands.is_empty() && submit.argv.is_empty() && submit.kind.as_deref() != Some("external") {
        let fix = match &args.file {
            Some(_) => "add `commands:` to the file, or -c 'echo hello'",
            None => "repl run -c 'echo hello', repl run -- echo hello, or repl run FILE.repl.yml",
        };
        return Err(Complaint::usage("nothing to run").fix(fix));
    }
    Ok(())
}

/// What to say about a working folder that nothing is sent for: the run begins in an empty one. That may be meant, by a command
/// that fills it; a folder that is none is not.
fn start_folder(submit: &Submit, files: &Files, here: &Path) -> Done<Option<String>> {
    let Some(said) = submit.working_dir.as_deref() else { return Ok(None) };
    if !spec::is_inside(said) {
        return Err(Complaint::usage(format!("--workdir: `{said}` leads out of the run's folder"))
            .fix("write a folder below it, like --workdir src; `working_dir` in a run file is the same"));
    }
    let parts = said.split('/').filter(|part| !part.is_empty() && *part != ".");
    let dir = parts.collect::<Vec<_>>().join("/");
    if matches!(files.found.get(&dir), Some(upload::Found::File(_))) {
        return Err(Complaint::usage(format!("--workdir: `{said}` is a file among those that are sent, not a folder"))
            .fix("name the folder it is in"));
    }
    if dir.is_empty() || files.names(&dir) {
        return Ok(None);
    }
    let fix = match here.join(&dir).is_dir() {
        true => format!("; it is here: add --file {}", meant::quoted(&[dir])),
        false => String::new(),
    };
    Ok(Some(format!("no file that is sent is in `{said}`, so the run begins there in an empty folder{fix}")))
}

fn confirm(args: &RunArgs, files: &Files) -> Done<()> {
    let (count, bytes) = (files.count(), files.bytes());
    let large = count > MANY_FILES || bytes > MANY_BYTES;
    if !large || args.yes || args.dry_run || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(());
    }
    eprint!("repl: {count} files, {}: send them? [y/N] ", show::size(bytes));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(|error| Complaint::usage(error.to_string()))?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(Complaint::refused("not sent").fix("name less after --file, or add a .gitignore"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: RunArgs,
    }

    fn of(words: &[&str]) -> Done<Submit> {
        let line = Line::try_parse_from(std::iter::once("run").chain(words.iter().copied()))
            .map_err(|error| Complaint::usage(error.to_string()))?;
        wanted(&line.args, &|_| None).map(|(submit, _)| submit)
    }

    #[test]
    fn flags_overrule_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.repl.yml");
        std::fs::write(
            &path,
            "type: task\nname: a\ncommands: [x]\nenv: {A: 1, B: 2}\nartifacts: [o]\nmax_duration: 1h\n",
        )
        .unwrap();
        let path = path.to_str().unwrap();
        let submit = of(&[path, "--name", "b", "--env", "B=3", "--artifact", "p", "--retry", "2"]).unwrap();
        assert_eq!((submit.name.as_deref(), submit.max_duration_ms), (Some("b"), Some(3_600_000)));
        assert_eq!((submit.env["A"].as_str(), submit.env["B"].as_str()), ("1", "3"));
        assert_eq!((submit.artifacts.len(), submit.retry.unwrap().max_attempts), (2, 2));
        let submit = of(&[path, "-c", "y"]).unwrap();
        assert_eq!((submit.commands.as_slice(), submit.name.as_deref()), (&["y".to_owned()][..], Some("a")));
        let submit = of(&[path, "--", "y", "z"]).unwrap();
        assert_eq!((submit.commands.len(), submit.argv.as_slice()), (0, &["y".to_owned(), "z".to_owned()][..]));
    }

    #[test]
    fn what_to_run_is_needed_once() {
        assert_eq!(of(&["-c", "echo"]).unwrap().commands, ["echo"]);
        assert_eq!(of(&["--", "echo", "-n"]).unwrap().argv, ["echo", "-n"]);
        for bad in [&[][..], &["-c", "x", "--", "y"], &["gone.yml"]] {
            assert_eq!(of(bad).unwrap_err().code, 2, "{bad:?}");
        }
    }

    #[test]
    fn a_start_folder_without_files_is_told() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("src/deep")).unwrap();
        std::fs::write(dir.path().join("src/deep/a.py"), "").unwrap();
        std::fs::create_dir(dir.path().join("other")).unwrap();
        let files = upload::walk(&[upload::source("src", dir.path()).unwrap()], false).unwrap();
        let of = |said: &str| {
            let submit = Submit { working_dir: Some(said.to_owned()), ..Submit::default() };
            start_folder(&submit, &files, dir.path())
        };
        for fine in ["src", "./src/deep/", ".", "src/deep"] {
            assert_eq!(of(fine).unwrap(), None, "{fine}");
        }
        let empty = "no file that is sent is in `new`, so the run begins there in an empty folder";
        assert_eq!(of("new").unwrap().as_deref(), Some(empty));
        assert!(of("other").unwrap().unwrap().ends_with("it is here: add --file other"));
        for refused in ["src/deep/a.py", "../up", "/abs", ""] {
            let complaint = of(refused).unwrap_err();
            assert!(complaint.code == 2 && complaint.fix.is_some(), "{refused}: {complaint}");
        }
        assert_eq!(start_folder(&Submit::default(), &files, dir.path()).unwrap(), None);
    }

    #[test]
    fn a_refused_field_is_called_by_its_flag() {
        let said = |text: &str, has_file| in_flags(Complaint::refused(text), has_file).to_string();
        for (text, has_file, answer) in [
            (
                "hold: must lie between 0s and 24h",
                false,
                "--hold: must lie between 0s and 24h\n  fix: write it like --hold 1h",
            ),
            (
                "hold: must lie between 0s and 24h",
                true,
                "--hold (`hold` in a run file): must lie between 0s and 24h\n  fix: write it like --hold 1h",
            ),
            (
                "memory: must be at least 4MB",
                false,
                "--memory: must be at least 4MB\n  fix: write it like --memory 4GB",
            ),
            ("retry.delay: too long", false, "--retry-delay: too long\n  fix: write it like --retry-delay 5s"),
            ("artifacts: `/abs` must stay", false, "--artifact: `/abs` must stay\n  fix: change --artifact"),
            ("snapshot: there is no `x`", false, "--snapshot: there is no `x`\n  fix: change --snapshot"),
            ("something else: no", false, "something else: no"),
        ] {
            assert_eq!(said(text, has_file), format!("error: {answer}"));
        }
    }

    #[test]
    fn wrong_amounts_are_refused_before_anything_happens() {
        assert_eq!(
            of(&["-c", "x", "--retry", "2", "--retry-delay", "5s"]).unwrap().retry.unwrap().delay_ms,
            Some(5000)
        );
        for bad in [
            ["--retry-delay", "5s"],
            ["--budget", "-1"],
            ["--max-duration", "5x"],
            ["--memory", "2XB"],
            ["--cpu", "0"],
            ["--env", "GONE"],
        ] {
            assert_eq!(of(&[&bad[..], &["-c", "x"]].concat()).unwrap_err().code, 2, "{bad:?}");
        }
    }
}
