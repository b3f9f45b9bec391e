//! The `repl` binary: every role is a subcommand. Owns the process: its signals, its runtime, its exit code.

#![allow(clippy::disallowed_methods, reason = "lives in real time, and is the one place that ends the process")]

// First, so that its macros are known to everything below.
#[macro_use]
mod say;

mod action;
mod adapter;
mod allocation;
mod args;
mod artifact;
mod bench;
mod cache;
mod call;
mod complaint;
mod completion;
mod control;
mod control_plane;
mod cost;
mod credits;
mod dag;
mod doctor;
mod drawing;
mod embedded;
mod event;
mod exec_repl;
mod external;
mod fault;
mod follow;
mod instance;
mod live;
mod login;
mod logs;
mod lookup;
mod manifest;
mod meant;
mod message;
mod orphan;
mod private;
mod prompt;
mod provider;
mod ps;
mod question;
mod role;
mod run;
mod run_file;
mod schema;
mod secret;
mod settings;
mod show;
mod sim;
#[cfg(test)]
#[path = "../../testkit/tests/support/skip.rs"]
mod skip;
mod snapshot;
mod status;
mod stdin;
mod step;
mod summary;
mod token;
mod tree;
mod ui;
mod upload;
mod usage;
mod workflow;

use args::{Command, Line};
use clap::Parser as _;
use complaint::{Complaint, Done, USAGE};
use plan::{nearest, quantity};
use settings::Settings;
use wire::model::fault::Role;

fn main() {
    // A keeper is forked for every job: it is itself before a parser or a runtime costs it memory.
    if std::env::args_os().nth(1).is_some_and(|word| word == "keeper") {
        fault::arm(&[Role::Keeper]);
        runner::keeper_main();
    }
    // The same for the first process of each sandbox.
    if std::env::args_os().nth(1).is_some_and(|word| word == "first") {
        runner::first_main();
    }
    // A server of an agent, and one call of it: each machine starts many of them, and people none.
    if let Some(code) = role::mcp() {
        std::process::exit(code);
    }
    if let Some(code) = role::on_host() {
        std::process::exit(code);
    }
    if let Some(code) = role::execution_adapter() {
        std::process::exit(code);
    }
    let line = match Line::try_parse() {
        Ok(line) => line,
        Err(error) => std::process::exit(i32::from(shown(usage::answer(error, &words())))),
    };
    fault::arm(line.command.as_ref().map_or(&[], args::Command::roles));
    if line.command.as_ref().is_some_and(is_role) {
        role::only_for_the_owner();
    } else {
        end_with_the_reader();
    }
    let code = match line.command {
        None => {
            println!("{}", args::MAP);
            0
        }
        Some(Command::Runner(args)) => role::runner(&args),
        Some(Command::Adapter(command)) => outcome(adapter::adapter(command)),
        Some(Command::Sim(args)) => outcome(sim::sim(&args)),
        Some(Command::Completion(args)) => outcome(completion::completion(&args)),
        Some(Command::Complete(args)) => outcome(completion::complete(args)),
        Some(Command::Schema(args)) => outcome(schema::schema(&args)),
        Some(Command::Help(args)) if args.path.is_empty() => {
            println!("{}", args::MAP);
            0
        }
        Some(Command::Help(args)) => shown(usage::help(&args.path)),
        Some(Command::CrashPoints(args)) => outcome(fault::points(&args)),
        Some(command) => outcome(start(&line.settings, command)),
    };
    let code = match say::failed() {
        Some(why) if code == 0 => {
            eprintln!("error: cannot write the output: {why}");
            complaint::REFUSED
        }
        _ => code,
    };
    // Not a return: a thread that still waits for a full pipe must not keep us.
    std::process::exit(i32::from(code));
}

/// The command line, the program's name first.
fn words() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Says why a command line cannot be read, or what was asked to be explained.
fn shown(answer: usage::Correction) -> u8 {
    match answer {
        usage::Correction::Complaint(complaint) => outcome(Err(complaint)),
        usage::Correction::Clap(error) => {
            // A reader that has gone reads nothing.
            error.print().ok();
            error.exit_code() as u8
        }
    }
}

fn outcome(done: Done) -> u8 {
    match done {
        Ok(code) => code,
        Err(complaint) => {
            eprintln!("{complaint}");
            complaint.code
        }
    }
}

/// A long-running process of an installation, whose output is a log.
fn is_role(command: &Command) -> bool {
    use Command::{Control, Runner, Server, Worker};
    matches!(command, Runner(_) | Server(_) | Worker(_) | Control(control::Control::Serve))
}

fn start(flags: &settings::Flags, command: Command) -> Done {
    let mut builder = if is_role(&command) {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = builder.enable_all().build().map_err(|error| Complaint {
        code: USAGE,
        text: format!("cannot start: {error}"),
        fix: None,
    })?;
    let done = runtime.block_on(dispatch(flags, command));
    runtime.shutdown_background();
    done
}

/// `repl logs … | head` ends like any other program when its reader has gone. Only then: a control plane that dies while
/// we write to it breaks a pipe too, and is found again.
fn end_with_the_reader() {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    let action = SigAction::new(SigHandler::Handler(on_broken_pipe), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler calls only what may be called in one.
    let installed = unsafe { sigaction(Signal::SIGPIPE, &action) };
    installed.expect("a handler can be installed for this signal");
}

extern "C" fn on_broken_pipe(_: libc::c_int) {
    let mut outputs = [1, 2].map(|fd| libc::pollfd { fd, events: 0, revents: 0 });
    // SAFETY: poll, signal and raise are async-signal-safe, and the array is ours.
    unsafe {
        libc::poll(outputs.as_mut_ptr(), 2, 0);
        if outputs.iter().any(|output| output.revents & (libc::POLLERR | libc::POLLHUP) != 0) {
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::raise(libc::SIGPIPE);
        }
    }
}

async fn dispatch(flags: &settings::Flags, command: Command) -> Done {
    if let Command::Control(control::Control::Serve) = command {
        return role::embedded().await;
    }
    let settings = Settings::read(flags)?;
    match command {
        Command::Run(args) => run::run(&settings, *args).await,
        Command::Attach(args) => run::attach(&settings, args).await,
        Command::Ps(args) => ps::ps(&settings, args).await,
        Command::Status(args) => status::status(&settings, args).await,
        Command::Why(args) => status::why(&settings, args).await,
        Command::Logs(args) => logs::logs(&settings, args).await,
        Command::Events(args) => event::events(&settings, args).await,
        Command::Cancel(args) => action::cancel(&settings, args).await,
        Command::Kill(args) => action::kill(&settings, args).await,
        Command::Start(args) => action::start(&settings, args).await,
        Command::Pause(args) => action::pause(&settings, args).await,
        Command::Resume(args) => action::resume(&settings, args).await,
        Command::Retry(args) => action::retry(&settings, args).await,
        Command::Delete(args) => action::delete(&settings, args).await,
        Command::Step(args) => step::step(&settings, args).await,
        Command::Send(args) => message::send(&settings, args).await,
        Command::Finish(args) => external::finish(&settings, args).await,
        Command::Instance(command) => instance::instance(&settings, command).await,
        Command::Allocation(command) => allocation::allocation(&settings, command).await,
        Command::Extend(args) => allocation::extend(&settings, args).await,
        Command::Release(args) => allocation::release(&settings, args).await,
        Command::Workflow(command) => workflow::workflow(&settings, command).await,
        Command::Cache(command) => cache::cache(&settings, command).await,
        Command::Backtrack(args) => cache::backtrack(&settings, args).await,
        Command::Call(args) => call::call(&settings, args).await,
        Command::Dag(command) => dag::dag(&settings, command).await,
        Command::Snapshot(command) => snapshot::snapshot(&settings, command).await,
        Command::Manifest(command) => manifest::manifest(&settings, command).await,
        Command::Provider(command) => provider::provider(&settings, command).await,
        Command::Orphans(command) => orphan::orphan(&settings, command).await,
        Command::Artifact(command) => artifact::artifact(&settings, command).await,
        Command::Escalation(command) => question::escalation(&settings, command).await,
        Command::Approval(command) => question::approval(&settings, command).await,
        Command::Credits(command) => credits::credits(&settings, command).await,
        Command::Secret(command) => secret::secret(&settings, command).await,
        Command::Token(command) => token::token(&settings, command).await,
        Command::Login(args) => login::login(&settings, args).await,
        Command::Logout(args) => login::logout(&settings, args),
        Command::Control(command) => control::control(&settings, command).await,
        Command::Server(args) => role::server(&settings, args).await,
        Command::Worker(args) => role::worker(&settings, args).await,
        Command::Ui(args) => ui::ui(&settings, args).await,
        Command::Audit(args) => credits::audit(&settings, args).await,
        Command::Doctor(args) => doctor::doctor(&settings, args).await,
        Command::Bench(args) => bench::bench(args).await,
        Command::Runner(_)
        | Command::Adapter(_)
        | Command::Sim(_)
        | Command::CrashPoints(_)
        | Command::Completion(_)
        | Command::Complete(_)
        | Command::Schema(_)
        | Command::Help(_) => unreachable!("done before the runtime started"),
    }
}
