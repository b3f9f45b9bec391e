//! The command line: every command, and the arguments several of them share. What a command does is in its noun's file.

use crate::{
    action, adapter, allocation, artifact, bench, cache, call, completion, control, credits, dag, doctor, event,
    external, fault, instance, login, logs, manifest, message, orphan, provider, ps, quantity, question, role, run,
    schema, secret, settings, sim, snapshot, status, step, token, ui, workflow,
};
use clap::{Parser, Subcommand};
use wire::model::fault::Role;

/// Runs commands on machines that are there, streams what happens, charges it once
#[derive(Debug, Parser)]
#[command(name = "repl", version, disable_help_subcommand = true, max_term_width = 110)]
pub struct Line {
    #[command(flatten)]
    pub settings: settings::Flags,
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Run(Box<run::RunArgs>),
    Attach(run::AttachArgs),
    #[command(visible_alias = "ls")]
    Ps(ps::PsArgs),
    Status(status::StatusArgs),
    Why(status::WhyArgs),
    #[command(alias = "log")]
    Logs(logs::LogsArgs),
    #[command(visible_alias = "event")]
    Events(event::EventsArgs),
    #[command(visible_alias = "stop")]
    Cancel(action::CancelArgs),
    Kill(action::KillArgs),
    Start(action::StartArgs),
    Pause(action::PauseArgs),
    Resume(action::ResumeArgs),
    Retry(action::RetryArgs),
    #[command(visible_alias = "rm", alias = "remove")]
    Delete(action::DeleteArgs),
    Step(step::StepArgs),
    Send(message::SendArgs),
    Finish(external::FinishArgs),
    /// Machines: list, show, terminate
    #[command(subcommand, visible_alias = "instances")]
    Instance(instance::Instance),
    /// What was bound to which run, and for how long it is held
    #[command(subcommand, visible_alias = "allocations")]
    Allocation(allocation::Allocation),
    Extend(allocation::ExtendArgs),
    Release(allocation::ReleaseArgs),
    /// The durable steps behind runs and machines
    #[command(subcommand, visible_alias = "workflows")]
    Workflow(workflow::Workflow),
    /// Who owns which resource
    #[command(subcommand, visible_alias = "manifests")]
    Manifest(manifest::Manifest),
    /// Where machines come from
    #[command(subcommand, visible_alias = "providers")]
    Provider(provider::Provider),
    /// Folders of runs that are kept, to start other runs from
    #[command(subcommand, visible_alias = "snapshots")]
    Snapshot(snapshot::Snapshot),
    /// Results of `repl run --cache`: list, explain, invalidate, collect
    #[command(subcommand)]
    Cache(cache::Cache),
    Backtrack(cache::BacktrackArgs),
    Call(call::CallArgs),
    /// Heads, commits and objects of calls, and their way to remotes
    #[command(subcommand)]
    Dag(dag::Dag),
    /// Resources at providers that no record here explains
    #[command(subcommand, visible_alias = "orphan")]
    Orphans(orphan::Orphan),
    /// What runs left behind
    #[command(subcommand, visible_alias = "artifacts")]
    Artifact(artifact::Artifact),
    /// Tickets about steps that a person decides
    #[command(subcommand, visible_alias = "escalations")]
    Escalation(question::Escalation),
    /// Steps that wait for a person's word
    #[command(subcommand, visible_alias = "approvals")]
    Approval(question::Approval),
    /// Balance, ledger and spending
    #[command(subcommand)]
    Credits(credits::CreditsCommand),
    /// Values that runs get as variables and that are never shown
    #[command(subcommand, visible_alias = "secrets")]
    Secret(secret::Secret),
    /// Who may talk to the control plane
    #[command(subcommand, visible_alias = "tokens")]
    Token(token::Token),
    Login(login::LoginArgs),
    Logout(login::LogoutArgs),
    Ui(ui::UiArgs),
    /// The embedded control plane of this machine
    #[command(subcommand)]
    Control(control::Control),
    Server(role::ServerArgs),
    Worker(role::WorkerArgs),
    Runner(role::RunnerArgs),
    /// Programs that execute calls: check one, and read and write objects for it
    #[command(subcommand)]
    Adapter(adapter::Adapter),
    Audit(credits::AuditArgs),
    Doctor(doctor::DoctorArgs),
    Sim(sim::SimArgs),
    Bench(bench::BenchArgs),
    Completion(completion::CompletionArgs),
    #[command(hide = true)]
    Complete(completion::CompleteArgs),
    Schema(schema::SchemaArgs),
    Help(HelpArgs),
    #[command(hide = true)]
    CrashPoints(fault::PointsArgs),
}

impl Command {
    /// What this process is, for its crash points.
    pub fn roles(&self) -> &'static [Role] {
        match self {
            Command::Server(args) if args.no_worker => &[Role::Server],
            Command::Server(_) | Command::Control(control::Control::Serve) => &[Role::Server, Role::Worker],
            Command::Worker(_) => &[Role::Worker],
            Command::Runner(_) => &[Role::Runner],
            _ => &[Role::Cli],
        }
    }
}

/// Say what one can do, or how to use a command
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl help
  repl help run
  repl help artifact get")]
pub struct HelpArgs {
    /// The command
    #[arg(value_name = "COMMAND")]
    pub path: Vec<String>,
}

impl Line {
    /// `repl run` alone, for those who look at its flags.
    #[cfg(test)]
    pub fn command_of_run() -> clap::Command {
        use clap::CommandFactory as _;
        Line::command().find_subcommand("run").expect("there is one").clone()
    }
}

/// For every command that shows something.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Json {
    /// JSON on stdout and nothing else there
    #[arg(long)]
    pub json: bool,
}

// For every listing. Not a doc comment: clap would show it as the description of each.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Listing {
    /// At most this many, the newest first
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = quantity::count, allow_negative_numbers = true)]
    pub limit: usize,
    /// JSON on stdout and nothing else there
    #[arg(long)]
    pub json: bool,
}

/// What `repl` alone says.
pub const MAP: &str = "\
repl runs commands on machines, streams what happens, charges it once.

  repl run -c 'echo hello'     submit a run and follow it (no set-up needed)
  repl run --file train.py --artifact 'out/*' -- python3 train.py

  ps  status  why              what is open; one run; why it waits or failed
  logs  events  attach         follow its output, its events, or both
  cancel  kill  pause  resume  end it, end it at once, freeze it, let it go on
  retry  start  delete         try it again, start what was created, hide it
  escalation  approval  send   what people are asked about agents, and tell them
  step  finish                 do something once in a run; end one from outside
  artifact                     bring back what a run left behind
  instance  allocation         machines, and what runs have on them
  extend  release              keep a finished run's folder longer, give it back
  snapshot                     keep a run's folder, and start others from it
  cache  backtrack             results that are kept, and where one came from
  call                         apply a function to values, once for each
  dag                          heads of results, objects, push and pull
  workflow  manifest           how machines came to be, and who owns them
  provider                     where machines come from, and what they cost
  orphans                      what providers list and no record explains
  adapter                      programs that execute calls, and their check
  credits  secret  token       money, values for runs, access
  login  logout                keep the token of a control plane elsewhere
  ui                           the same in your browser
  control                      your own control plane: status, logs, stop
  server  worker  runner       roles of an installation, in the foreground
  audit  doctor                does everything add up; does everything work here
  sim  bench                   simulations with faults; how fast it is here
  schema  completion  help     for your editor, for your shell, for you

A run is named by its id, a unique beginning of it, its name, or @last; most
commands mean @last when none is named.
More: repl help COMMAND";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_holds_together() {
        Line::command().debug_assert();
    }

    #[test]
    fn what_is_written_by_hand_fits_into_80_columns() {
        fn check(command: &clap::Command) {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in after.lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Line::command());
        for line in MAP.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn the_map_names_every_command() {
        for command in Line::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(MAP.split_whitespace().any(|word| word == command.get_name()), "{}", command.get_name());
        }
    }

    #[test]
    fn every_command_says_what_it_does_with_an_example() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            let is_leaf = command.get_subcommands().next().is_none() && !command.is_hide_set();
            assert!(!is_leaf || command.get_after_help().is_some(), "`{}` has no example", command.get_name());
            command.get_subcommands().for_each(check);
        }
        check(&Line::command());
    }

    /// The page of a run names a command beside each of its buttons: each is one that this program understands.
    #[test]
    fn the_commands_that_pages_name_are_understood() {
        let table: [(&[&str], &str, Option<&str>); 6] = [
            (&["start", "cancel"], "task", None),
            (&["pause", "cancel"], "external", None),
            (&["resume", "cancel"], "agents", None),
            (&["retry"], "task", Some("alc_9ix")),
            (&["cancel"], "task", None),
            (&[], "task", Some("alc_9ix")),
        ];
        for (acts, kind, kept) in table {
            let allowed = acts.iter().chain(&["delete"]).map(|act| (*act).to_owned()).collect();
            let run = wire::api::RunView { kind: kind.to_owned(), allowed, ..crate::summary::sample() };
            let commands = server::run_commands(&run, kept);
            let words: Vec<&str> = commands.iter().filter_map(|line| line.split(' ').nth(1)).collect();
            let again = if kind == "external" { &["artifact"][..] } else { &["artifact", "run"] };
            let kept = if kept.is_some() { &["extend", "release"][..] } else { &[] };
            assert_eq!(words, [&["status", "logs"][..], acts, kept, again].concat(), "{acts:?} {kind}");
            for line in commands {
                if let Err(error) = Line::try_parse_from(line.split(' ')) {
                    panic!("{line}: {error}");
                }
            }
        }
    }
}
