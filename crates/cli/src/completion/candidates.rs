//! What an argument can be: runs, machines, workdirs, secrets, artifacts, as the control plane that runs lists them.

use super::usage;
use crate::args::Line;
use crate::control_plane::{API, ControlPlane};
use crate::lookup;
use crate::say;
use crate::settings::{Flags, Settings};
use clap::{CommandFactory as _, ValueHint};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use wire::api::Page;
use wire::client::{Method, encode};

/// Stands for the files the shell itself knows best how to complete.
pub const FILES: &str = ":files";
/// A Tab waits at most this long for names.
const WITHIN: Duration = Duration::from_millis(900);
/// The newest; older ones are found by writing their ids.
const OFFERED: usize = 100;
const LONGEST_HELP: usize = 60;

/// What else the line says that is being completed.
pub struct Context {
    flags: Flags,
    /// Positional words of the command, up to the one that is being written.
    words: Vec<String>,
}

/// What an argument names.
#[derive(Clone, Copy, PartialEq)]
enum What {
    /// Runs in one of these statuses; in any, if there are none.
    Runs(&'static [&'static str]),
    Noun(lookup::Noun),
    /// Of this noun, or the run it belongs to.
    OfRun(lookup::Noun),
    Secrets,
    Providers,
    /// Heads, and those of remotes.
    Heads,
    /// Of the run that was named before.
    Artifacts,
    /// Names of its agents, tasks or steps.
    Below(&'static str),
    Files,
}

#[derive(Deserialize)]
struct Listed {
    #[serde(default)]
    id: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    command: Option<String>,
    #[serde(default)]
    run: Option<String>,
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    short: Option<String>,
}

/// The command line with a source of candidates for each argument that names something.
pub fn teach(command: clap::Command, context: &Arc<Context>) -> clap::Command {
    let name = command.get_name().to_owned();
    command
        .mut_args(|arg| match what(&name, &arg) {
            None => arg,
            Some(what) => {
                let context = Arc::clone(context);
                arg.add(ArgValueCompleter::new(move |current: &std::ffi::OsStr| {
                    context.candidates(what, &current.to_string_lossy())
                }))
            }
        })
        .mut_subcommands(|command| teach(command, context))
}

/// What this argument of this command names: arguments are called after it.
fn what(command: &str, arg: &clap::Arg) -> Option<What> {
    const OPEN: &[&str] = &["pending", "running", "paused", "resuming", "retrying"];
    Some(match (command, arg.get_id().as_str()) {
        ("cancel" | "kill", "runs") => What::Runs(&["created", "pending", "running", "paused", "resuming", "retrying"]),
        ("pause", "runs") => What::Runs(OPEN),
        ("resume", "runs") => What::Runs(&["paused"]),
        ("start", "runs") => What::Runs(&["created"]),
        ("retry", "runs") => What::Runs(&["failed"]),
        ("delete", "runs") => What::Runs(&["created", "completed", "failed", "cancelled"]),
        (_, "run" | "runs") => What::Runs(&[]),
        (_, "instance") => What::Noun(lookup::INSTANCE),
        (_, "allocation") => What::OfRun(lookup::ALLOCATION),
        (_, "workflow") => What::OfRun(lookup::WORKFLOW),
        (_, "manifest") => What::Noun(lookup::MANIFEST),
        (_, "snapshot") => What::Noun(lookup::SNAPSHOT),
        (_, "token") => What::Noun(lookup::TOKEN),
        (_, "escalation") => What::Noun(lookup::ESCALATION),
        (_, "approval") => What::Noun(lookup::APPROVAL),
        (_, "call") | ("diff", "other") => What::Noun(lookup::CALL),
        ("logs" | "send", "agent") => What::Below("agents"),
        ("logs", "task") => What::Below("tasks"),
        ("logs", "step") => What::Below("steps"),
        ("delete", "name") | (_, "secrets") => What::Secrets,
        (_, "provider") => What::Providers,
        (_, "head" | "object") => What::Heads,
        ("get", "glob") => What::Artifacts,
        ("run", "files" | "argv" | "workdir") => What::Files,
        _ if is_path(arg) => What::Files,
        _ => return None,
    })
}

fn is_path(arg: &clap::Arg) -> bool {
    matches!(arg.get_value_hint(), ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath)
}

impl Context {
    /// None for a line that names no command, which has no continuation either.
    pub fn of(words: &[String]) -> Option<Context> {
        let mut root = Line::command();
        root.build();
        let read = usage::read(&root, words);
        let rest = &words[read.rest.min(words.len())..];
        let stray = usage::positionals(read.command, rest).first().is_some_and(|at| at + 1 < rest.len());
        if read.command.has_subcommands() && stray {
            return None;
        }
        // The last word is the one that is being written; it may be the value of a flag.
        let before = usage::positionals(read.command, rest).into_iter().filter(|at| at + 1 < rest.len());
        let positional: Vec<String> = before.map(|at| rest[at].clone()).collect();
        let flag = |name: &str| {
            let at = words.iter().position(|word| word.split('=').next() == Some(name))?;
            words[at].split_once('=').map(|it| it.1.to_owned()).or_else(|| words.get(at + 1).cloned())
        };
        let flags = Flags {
            home: flag("--home").map(Into::into),
            url: flag("--url"),
            config: flag("--config").map(Into::into),
        };
        Some(Context { flags, words: positional })
    }

    fn candidates(&self, what: What, current: &str) -> Vec<CompletionCandidate> {
        if what == What::Files {
            // A dash begins a flag.
            let files = (!current.starts_with('-')).then(|| CompletionCandidate::new(FILES));
            return files.into_iter().collect();
        }
        let mut found = match what {
            What::Runs(statuses) => self.runs(statuses, current),
            What::Noun(noun) => self.of_noun(noun),
            What::OfRun(noun) => {
                let own = self.of_noun(noun).into_iter().map(|it| it.hide(current.is_empty()));
                own.chain(self.runs(&[], current)).collect()
            }
            What::Secrets => self.named("/secrets"),
            What::Providers => self.named("/providers"),
            What::Heads => plain(self.list("/dag/refs").into_iter().filter_map(|it| it.short).collect()),
            What::Artifacts => self.artifacts(),
            What::Below(what) => self.below(what),
            What::Files => Vec::new(),
        };
        found.retain(|it| is_offered(&it.get_value().to_string_lossy(), current));
        found
    }

    fn named(&self, path: &str) -> Vec<CompletionCandidate> {
        self.list(path).into_iter().filter_map(|it| it.name).map(CompletionCandidate::new).collect()
    }

    /// `@last` and names; ids when one is being written, or where nothing has a name.
    fn runs(&self, statuses: &[&str], current: &str) -> Vec<CompletionCandidate> {
        let runs = self.list("/runs?all=true");
        let fit: Vec<&Listed> = runs
            .iter()
            .filter(|run| statuses.is_empty() || run.status.as_deref().is_some_and(|it| statuses.contains(&it)))
            .collect();
        let mut found: Vec<CompletionCandidate> = Vec::new();
        if !fit.is_empty() {
            found.push(CompletionCandidate::new(lookup::LAST).help(Some("the run submitted last from here".into())));
        }
        for run in &fit {
            let Some(name) = run.name.as_deref().filter(|name| !name.is_empty() && *name != run.id) else { continue };
            if found.iter().all(|it| it.get_value() != name) {
                found.push(CompletionCandidate::new(name).help(help(run)));
            }
        }
        let ids = fit.iter().map(|run| CompletionCandidate::new(&run.id).help(help(run)).hide(current.is_empty()));
        found.extend(ids);
        found
    }

    fn of_noun(&self, noun: lookup::Noun) -> Vec<CompletionCandidate> {
        let listed = self.list(noun.path);
        listed.iter().map(|it| CompletionCandidate::new(&it.id).help(help(it))).collect()
    }

    /// Only paths that a shell takes as they are.
    fn artifacts(&self) -> Vec<CompletionCandidate> {
        let listed = self.of_run("artifacts");
        plain(listed.into_iter().filter_map(|it| it.path).collect())
    }

    fn below(&self, what: &str) -> Vec<CompletionCandidate> {
        let listed = self.of_run(what);
        plain(listed.into_iter().filter_map(|it| it.name).collect())
    }

    /// A listing of the run that was named before, else of the one that was submitted last from here.
    fn of_run(&self, what: &str) -> Vec<Listed> {
        let run = self.words.first().map_or(lookup::LAST, String::as_str);
        let listed = self.ask(|plane| async move {
            let run = match run {
                lookup::LAST => lookup::remembered(&plane)?,
                run if run.starts_with(lookup::RUN.prefix) => run.to_owned(),
                name => page(&plane, &format!("/runs?all=true&name={}", encode(name))).await?.into_iter().next()?.id,
            };
            page(&plane, &format!("/runs/{}/{what}", encode(&run))).await
        });
        listed.unwrap_or_default()
    }

    fn list(&self, path: &str) -> Vec<Listed> {
        self.ask(|plane| async move { page(&plane, path).await }).unwrap_or_default()
    }

    /// Asks the control plane that runs. One try, bounded in time: nothing here starts or revives one.
    fn ask<T, F: Future<Output = Option<T>>>(&self, question: impl FnOnce(ControlPlane) -> F) -> Option<T> {
        let settings = Settings::read(&self.flags).ok()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let answer = runtime.block_on(async {
            let plane = ControlPlane::find(&settings).ok()??;
            tokio::time::timeout(WITHIN, question(plane)).await.ok()?
        });
        runtime.shutdown_background();
        answer
    }
}

/// Texts that a shell takes as they are, each once.
fn plain(mut texts: Vec<String>) -> Vec<CompletionCandidate> {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./+,@%".contains(c);
    texts.retain(|text| text.chars().all(is_plain));
    texts.sort();
    texts.dedup();
    texts.into_iter().map(CompletionCandidate::new).collect()
}

async fn page(plane: &ControlPlane, path: &str) -> Option<Vec<Listed>> {
    let joint = if path.contains('?') { '&' } else { '?' };
    let path = format!("{API}{path}{joint}limit={OFFERED}");
    let answer = plane.client().request(Method::GET, &path).within(WITHIN).send().await.ok()?;
    let page: Page<Listed> = answer.json().await.ok()?;
    Some(page.data)
}

fn help(it: &Listed) -> Option<clap::builder::StyledStr> {
    let words = [it.status.as_deref(), it.command.as_deref().or(it.run.as_deref()).or(it.name.as_deref())];
    let text = words.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let text: String = harmless(&text).chars().take(LONGEST_HELP).collect();
    if text.is_empty() { None } else { Some(text.into()) }
}

/// A value goes into the line as it is, so it cannot be written out as help is: one that a terminal would obey, or that could look like
/// another, is not offered.
fn is_offered(value: &str, current: &str) -> bool {
    value.starts_with(current) && !value.chars().any(say::is_harmful)
}

/// What others have written is shown without anything a terminal would obey, or that turns the order of what follows.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if say::is_harmful(c) { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_argument_that_names_something_is_completed() {
        fn check(path: &str, command: &clap::Command, missing: &mut Vec<String>) {
            for arg in command.get_arguments() {
                let placeholder = arg.get_value_names().and_then(|names| names.first()).map(|name| name.to_string());
                let names_something = [
                    "RUN",
                    "ALC",
                    "INSTANCE",
                    "ALLOCATION",
                    "WORKFLOW",
                    "MANIFEST",
                    "SNAPSHOT",
                    "TOKEN",
                    "ESCALATION",
                    "APPROVAL",
                    "AGENT",
                    "TASK",
                    "STEP",
                    "DIR",
                ]
                .contains(&placeholder.unwrap_or_default().as_str());
                if names_something && arg.get::<ArgValueCompleter>().is_none() {
                    missing.push(format!("{path} {}", arg.get_id()));
                }
            }
            for sub in command.get_subcommands() {
                check(&format!("{path} {}", sub.get_name()), sub, missing);
            }
        }
        let context = Context { flags: Flags::default(), words: Vec::new() };
        let mut command = teach(Line::command(), &Arc::new(context));
        command.build();
        let mut missing = Vec::new();
        check("repl", &command, &mut missing);
        assert_eq!(missing, Vec::<String>::new());
    }

    #[test]
    fn the_line_says_where_to_ask_and_for_what() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let context = Context::of(&words("repl --home h artifact get train --url=http://x out")).unwrap();
        assert_eq!(context.flags.home.as_deref(), Some(std::path::Path::new("h")));
        assert_eq!(context.flags.url.as_deref(), Some("http://x"));
        assert_eq!(context.words, ["train"]);
        assert!(Context::of(&words("repl logs ")).unwrap().words.is_empty());
        assert!(Context::of(&words("repl --home h ")).is_some() && Context::of(&words("repl --home h")).is_some());
        assert!(Context::of(&words("repl lgos ")).is_none());
    }

    #[test]
    fn nothing_a_terminal_obeys_is_shown() {
        assert_eq!(harmless("a\x1b[31mb\u{9b}c\n"), "a [31mb c ");
        assert_eq!(harmless("a\u{202e}b\u{2028}c\u{feff}d\u{e0041}e"), "a b c d e");
        for (name, offered) in [
            ("train", true),
            ("träin-二", true),
            ("train\u{202e}gnp", false),
            ("train\x1b[2J", false),
            ("train\u{2028}", false),
            ("tr\u{feff}ain", false),
            ("tr\u{e0041}ain", false),
        ] {
            assert_eq!(is_offered(name, "tr"), offered, "{name:?}");
        }
        assert!(!is_offered("train", "x"));
    }
}
