//! Answers a command line that cannot be read: the command or flag that was meant, as it should be typed. Words that mean
//! something in other tools are translated; what does not exist here is said to be missing. Runs nothing.

use crate::args::Line;
use crate::complaint::Complaint;
use crate::{meant, nearest};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory as _};
use std::path::Path;

/// A word that people bring from elsewhere (docker, kubectl, dstack, sky, slurm).
struct Elsewhere {
    words: &'static [&'static str],
    /// What to type here; whatever followed the word is put behind it.
    here: Option<&'static str>,
    /// What it does, or why there is no such thing.
    note: &'static str,
}

const COMMANDS: &[Elsewhere] = &[
    Elsewhere {
        words: &["list", "jobs", "job", "runs", "queue", "squeue", "ll"],
        here: Some("repl ps"),
        note: "to list runs",
    },
    Elsewhere {
        words: &["describe", "inspect", "show", "get", "info"],
        here: Some("repl status"),
        note: "to show a run",
    },
    Elsewhere {
        words: &["submit", "apply", "up", "launch", "sbatch"],
        here: Some("repl run"),
        note: "to submit a run",
    },
    Elsewhere {
        words: &["down", "terminate", "destroy", "abort", "scancel"],
        here: Some("repl cancel"),
        note: "to end a run",
    },
    Elsewhere { words: &["wait", "follow", "watch"], here: Some("repl attach"), note: "to follow a run to its end" },
    Elsewhere { words: &["tail"], here: Some("repl logs -f"), note: "to follow the output of a run" },
    Elsewhere {
        words: &["cp", "pull", "download", "fetch", "rsync"],
        here: Some("repl artifact get"),
        note: "to bring back what a run kept (`repl run --artifact`)",
    },
    Elsewhere {
        words: &["machine", "machines", "node", "nodes", "cluster", "clusters", "fleet"],
        here: Some("repl instance ls"),
        note: "to list machines",
    },
    Elsewhere { words: &["balance"], here: Some("repl credits balance"), note: "to see what is left" },
    Elsewhere {
        words: &["cost", "usage", "cost-report"],
        here: Some("repl credits usage"),
        note: "to see what was spent",
    },
    Elsewhere { words: &["version"], here: Some("repl --version"), note: "to see the version" },
    Elsewhere { words: &["check"], here: Some("repl doctor"), note: "to see what works here" },
    Elsewhere { words: &["completions", "complete"], here: Some("repl completion"), note: "for your shell" },
    Elsewhere { words: &["init"], here: Some("repl run -c 'echo hello'"), note: "nothing needs to be set up" },
    Elsewhere {
        words: &["top", "stats", "dashboard"],
        here: Some("repl ui"),
        note: "to see in your browser what runs, live",
    },
    Elsewhere {
        words: &["exec", "ssh", "shell"],
        here: None,
        note: "a way into a running run does not exist yet: `repl allocation show RUN` names its folder",
    },
    Elsewhere {
        words: &["port-forward", "forward", "expose", "service", "serve", "gateway"],
        here: None,
        note: "ports and services cannot be used yet",
    },
    Elsewhere {
        words: &["schedule", "cron"],
        here: None,
        note: "schedules cannot be used yet: call `repl run` from cron",
    },
    Elsewhere {
        words: &["build", "push", "image", "images", "volume", "volumes"],
        here: None,
        note: "there are no images and volumes: files travel with `repl run --file`",
    },
];

/// Flags of `repl run` that people bring from elsewhere.
const RUN_FLAGS: &[Elsewhere] = &[
    Elsewhere {
        words: &["--timeout", "--time", "--time-limit"],
        here: Some("--max-duration"),
        note: "its longest duration",
    },
    Elsewhere { words: &["--volume", "--mount", "-v"], here: Some("--file"), note: "a file or folder to send" },
    Elsewhere { words: &["--upload", "--files", "--include"], here: Some("--file"), note: "a file or folder to send" },
    Elsewhere { words: &["--cpus", "-N"], here: Some("--cpu"), note: "processors" },
    Elsewhere { words: &["--mem", "-m"], here: Some("--memory"), note: "memory" },
    Elsewhere { words: &["-n", "--job-name"], here: Some("--name"), note: "its name" },
    Elsewhere { words: &["-w", "--chdir", "--cwd", "-C"], here: Some("--workdir"), note: "the folder to start in" },
    Elsewhere { words: &["--background", "--async", "--no-follow"], here: Some("--detach"), note: "do not follow it" },
    Elsewhere { words: &["--outputs", "--output", "-o"], here: Some("--artifact"), note: "what to keep afterwards" },
    Elsewhere { words: &["--gpus", "--gres"], here: Some("--gpu"), note: "GPUs" },
    Elsewhere {
        words: &["--image", "--docker", "--container"],
        here: None,
        note: "images cannot be used yet: a run uses what its machine has",
    },
    Elsewhere { words: &["--nodes", "--num-nodes"], here: None, note: "a run has one machine yet" },
    Elsewhere { words: &["--use-spot"], here: Some("--spot"), note: "a machine that may be taken away" },
    Elsewhere { words: &["--port", "--ports", "--publish", "-p"], here: None, note: "ports cannot be used yet" },
    Elsewhere { words: &["-t", "--tty", "-it", "-ti"], here: None, note: "there are no terminals for runs yet" },
    Elsewhere { words: &["--rm"], here: None, note: "leave it out: nothing needs to be removed after a run" },
];

/// What to say, or whom to let speak: clap's own words are right where nothing was mistyped.
pub enum Correction {
    Complaint(Complaint),
    Clap(clap::Error),
}

pub fn answer(error: clap::Error, words: &[String]) -> Correction {
    let mut root = Line::command();
    root.build();
    let read = read(&root, words);
    let wrong = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => match wrong(ContextKind::InvalidSubcommand) {
            Some(word) if word == "help" => help(&read.path),
            Some(word) => Correction::Complaint(no_such_command(&read, &word, words)),
            None => Correction::Clap(error),
        },
        ErrorKind::UnknownArgument => match wrong(ContextKind::InvalidArg) {
            Some(word) => Correction::Complaint(unexpected(&read, &word, words)),
            None => Correction::Clap(error),
        },
        ErrorKind::InvalidValue => match (error.get(ContextKind::ValidValue), wrong(ContextKind::InvalidValue)) {
            (Some(ContextValue::Strings(known)), Some(word)) if !known.is_empty() && !word.is_empty() => {
                let arg = wrong(ContextKind::InvalidArg).unwrap_or_default();
                Correction::Complaint(not_one_of(&arg, &word, known))
            }
            (known, _) => {
                Correction::Complaint(without_value(&wrong(ContextKind::InvalidArg).unwrap_or_default(), known))
            }
        },
        ErrorKind::ValueValidation => match wrong(ContextKind::InvalidArg) {
            Some(arg) => {
                let value = wrong(ContextKind::InvalidValue).unwrap_or_default();
                Correction::Complaint(bad_value(&read, &arg, &value, std::error::Error::source(&error)))
            }
            None => Correction::Clap(error),
        },
        ErrorKind::ArgumentConflict => {
            let first = wrong(ContextKind::InvalidArg).unwrap_or_default();
            let second = match error.get(ContextKind::PriorArg) {
                Some(ContextValue::String(arg)) => arg.clone(),
                Some(ContextValue::Strings(args)) => args.join(" and "),
                _ => String::new(),
            };
            Correction::Complaint(conflict(&first, &second))
        }
        ErrorKind::MissingRequiredArgument => match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::Strings(missing)) if missing.iter().any(|arg| arg.starts_with("<RUN>")) => {
                let command = spoken(&read.path);
                let complaint = Complaint::usage(format!("`{command}` needs a run"));
                let lists = match read.command.get_name() {
                    "release" => "repl allocation ls",
                    "delete" | "retry" | "start" => "repl ps -a",
                    _ => "repl ps",
                };
                Correction::Complaint(complaint.fix(format!("the last one: {command} @last; `{lists}` lists them")))
            }
            Some(ContextValue::Strings(missing)) if missing.iter().any(|arg| arg.starts_with("<INSTANCE>")) => {
                let complaint = Complaint::usage(format!("`{}` needs a machine", spoken(&read.path)));
                Correction::Complaint(complaint.fix("write its id; `repl instance ls` lists them"))
            }
            Some(ContextValue::Strings(missing)) => {
                let missing: Vec<String> = missing.iter().map(|arg| label(arg)).collect();
                let complaint = Complaint::usage(format!("`{}` needs {}", spoken(&read.path), missing.join(" and ")));
                Correction::Complaint(
                    complaint.fix(choices(read.command, &missing).unwrap_or_else(|| written(read.command))),
                )
            }
            _ => Correction::Clap(error),
        },
        _ => Correction::Clap(error),
    }
}

/// The argument as a person writes it: `--tail <N>` is --tail, `<NAME>` is NAME.
fn label(arg: &str) -> String {
    let word = arg.split([' ', '=']).next().unwrap_or(arg);
    word.trim_end_matches('.').trim_matches(['<', '>', '[', ']']).to_owned()
}

/// What a missing word may be, if only a few are known.
fn choices(command: &Command, missing: &[String]) -> Option<String> {
    let [name] = missing else { return None };
    let is_it = |arg: &&clap::Arg| arg.get_id().as_str().eq_ignore_ascii_case(name);
    let known = command.get_positionals().find(is_it)?.get_possible_values();
    let known: Vec<&str> = known.iter().map(clap::builder::PossibleValue::get_name).collect();
    (!known.is_empty()).then(|| format!("one of {}", known.join(", ")))
}

/// How the command is written as a whole.
fn written(command: &Command) -> String {
    command.clone().render_usage().to_string().replace("Usage: ", "write ")
}

fn bad_value(read: &Reading<'_>, arg: &str, value: &str, why: Option<&(dyn std::error::Error + 'static)>) -> Complaint {
    let help = format!("see `{} --help`", spoken(&read.path));
    let complaint = match why {
        Some(why) if why.is::<std::num::ParseIntError>() => {
            Complaint::value(&label(arg), &format!("`{value}` is not a whole number: write it like 5"))
        }
        Some(why) => Complaint::value(&label(arg), &why.to_string()),
        None => Complaint::usage(format!("{} cannot be `{value}`", label(arg))),
    };
    if complaint.fix.is_some() { complaint } else { complaint.fix(help) }
}

/// A flag at the end of the line, or one that another flag follows.
fn without_value(arg: &str, known: Option<&ContextValue>) -> Complaint {
    let complaint = Complaint::usage(format!("{} needs a value", label(arg)));
    match known {
        Some(ContextValue::Strings(known)) if !known.is_empty() => {
            complaint.fix(format!("one of {}", known.join(", ")))
        }
        _ => complaint.fix(format!("write it like {}", arg.replace(['<', '>'], ""))),
    }
}

fn conflict(first: &str, second: &str) -> Complaint {
    if first == second || second.is_empty() {
        return Complaint::usage(format!("{} is given twice", label(first))).fix("leave out one of them");
    }
    Complaint::usage(format!("{} and {} cannot be used together", label(first), label(second)))
        .fix("leave out one of them")
}

fn not_one_of(arg: &str, word: &str, known: &[String]) -> Complaint {
    let fix = nearest::did_you_mean(word, known.iter().map(String::as_str));
    Complaint::usage(format!("{} cannot be `{word}`: it is one of {}", label(arg), known.join(", ")))
        .fix(fix.unwrap_or_else(|| "write one of these".to_owned()))
}

/// The same as `--help` behind these words.
pub fn help(path: &[String]) -> Correction {
    let words: Vec<&str> = std::iter::once("repl").chain(path.iter().map(String::as_str)).chain(["--help"]).collect();
    match <Line as clap::Parser>::try_parse_from(&words) {
        Err(error) if error.kind() == ErrorKind::DisplayHelp => Correction::Clap(error),
        Err(error) => answer(error, &words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()),
        Ok(_) => unreachable!("--help always answers"),
    }
}

fn no_such_command(read: &Reading<'_>, word: &str, words: &[String]) -> Complaint {
    let said = format!("{} {word}", spoken(&read.path));
    let rest = &words[(read.rest + 1).min(words.len())..];
    let complaint = Complaint::usage(format!("there is no `{said}`"));
    if read.path.is_empty() {
        if let Some(known) = COMMANDS.iter().find(|known| known.words.contains(&word)) {
            return translated(complaint, known, rest);
        }
        if let Some(fix) = meant::without_run(&words[read.rest.min(words.len())..], Path::new("")) {
            return complaint.fix(fix);
        }
    }
    let known = read.command.get_subcommands().filter(|command| !command.is_hide_set());
    let names: Vec<&str> = known.flat_map(|command| command.get_name_and_visible_aliases()).collect();
    let more = if read.path.is_empty() { "see `repl help`".to_owned() } else { format!("known: {}", names.join(", ")) };
    match nearest::nearest(word, names.iter().copied()) {
        Some(name) if !rest.is_empty() => {
            complaint.fix(format!("did you mean `{} {name} {}`?", spoken(&read.path), meant::quoted(rest)))
        }
        Some(_) => complaint.fix(nearest::suggestion(word, &names)),
        None => complaint.fix(more),
    }
}

fn translated(complaint: Complaint, known: &Elsewhere, rest: &[String]) -> Complaint {
    match known.here {
        Some(here) if rest.is_empty() => complaint.fix(format!("{}: {here}", known.note)),
        Some(here) => complaint.fix(format!("{}: {here} {}", known.note, meant::quoted(rest))),
        None => complaint.fix(known.note),
    }
}

/// A flag that is not known, or a word too many.
fn unexpected(read: &Reading<'_>, word: &str, words: &[String]) -> Complaint {
    let command = spoken(&read.path);
    let rest = &words[read.rest.min(words.len())..];
    let is_run = read.path == ["run"];
    if is_run && let Some(complaint) = meant::rejected(read.command, rest, word, Path::new("")) {
        return complaint;
    }
    if !word.starts_with('-') {
        return Complaint::usage(format!("`{command}` does not take `{word}`")).fix(written(read.command));
    }
    let complaint = Complaint::usage(format!("`{command}` has no flag `{word}`"));
    if is_run && let Some(known) = RUN_FLAGS.iter().find(|known| known.words.contains(&word)) {
        return match known.here {
            Some(flag) => complaint.fix(format!("{}: {flag}", known.note)),
            None => complaint.fix(known.note),
        };
    }
    let flags = read.command.get_arguments().filter(|flag| !flag.is_hide_set());
    let flags: Vec<String> = flags.filter_map(|flag| flag.get_long()).map(|name| format!("--{name}")).collect();
    // A short flag stands for one letter: there is nothing to be near to.
    let near = word.strip_prefix("--").and_then(|name| {
        nearest::nearest(name, flags.iter().map(|flag| flag.trim_start_matches('-'))).map(|name| format!("--{name}"))
    });
    complaint.fix(match near {
        Some(flag) => format!("did you mean `{flag}`?"),
        None => format!("see `{command} --help`"),
    })
}

fn spoken(path: &[String]) -> String {
    std::iter::once("repl").chain(path.iter().map(String::as_str)).collect::<Vec<_>>().join(" ")
}

/// How far a command line can be read: the command it names, and where what follows begins.
pub struct Reading<'c> {
    pub command: &'c Command,
    /// The names of the commands, without the program's.
    pub path: Vec<String>,
    /// Index of the first word that names no command.
    pub rest: usize,
}

/// Reads `words`, the program's name first. `root` has been built.
pub fn read<'c>(root: &'c Command, words: &[String]) -> Reading<'c> {
    let mut read = Reading { command: root, path: Vec::new(), rest: words.len().min(1) };
    while let Some(at) = positionals(read.command, &words[read.rest..]).first().map(|at| read.rest + at) {
        let Some(command) = read.command.find_subcommand(&words[at]) else {
            // A command that takes no commands: its own words begin right behind its name.
            if read.command.has_subcommands() {
                read.rest = at;
            }
            return read;
        };
        read.path.push(command.get_name().to_owned());
        read.command = command;
        read.rest = at + 1;
    }
    read
}

/// Which of these words are neither flags nor their values, up to `--`.
pub fn positionals(command: &Command, words: &[String]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        if word == "--" {
            break;
        }
        if !word.starts_with('-') || word == "-" {
            found.push(at);
        } else if takes_next(command, word) {
            at += 1;
        }
        at += 1;
    }
    found
}

/// Whether the value of this flag is the next word.
fn takes_next(command: &Command, word: &str) -> bool {
    value_flag(command, word).is_some_and(|(_, value)| value.is_none())
}

/// The flag with a value that this word names, and the value if the word has it too: `--cpu`, `--cpu=2`, `-dc`, `-ctrue`.
pub fn value_flag<'c, 'w>(command: &'c Command, word: &'w str) -> Option<(&'c clap::Arg, Option<&'w str>)> {
    let takes_value = |flag: &&clap::Arg| flag.get_action().takes_values();
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        let is_it = |flag: &&clap::Arg| {
            flag.get_long() == Some(name) || flag.get_all_aliases().is_some_and(|names| names.contains(&name))
        };
        return Some((command.get_arguments().find(is_it).filter(takes_value)?, value));
    }
    let of = |letter: char| command.get_arguments().find(|flag| flag.get_short() == Some(letter)).filter(takes_value);
    let (at, flag) =
        word.char_indices().skip(1).find_map(|(at, letter)| Some((at + letter.len_utf8(), of(letter)?)))?;
    Some((flag, Some(&word[at..]).filter(|value| !value.is_empty())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    /// What is answered to a line, as one text.
    fn said(line: &str) -> String {
        let words: Vec<String> = std::iter::once("repl").chain(line.split(' ')).map(str::to_owned).collect();
        let error = Line::try_parse_from(&words).expect_err(line);
        match answer(error, &words) {
            Correction::Complaint(complaint) => {
                assert_eq!(complaint.code, 2, "{line}");
                complaint.to_string()
            }
            Correction::Clap(error) => format!("clap: {:?}", error.kind()),
        }
    }

    #[test]
    fn words_of_other_tools_are_translated() {
        for (line, fix) in [
            ("list", "to list runs: repl ps"),
            ("list -a", "to list runs: repl ps -a"),
            ("describe train", "to show a run: repl status train"),
            ("submit train.repl.yml", "to submit a run: repl run train.repl.yml"),
            ("--home x down train", "to end a run: repl cancel train"),
            ("top", "to see in your browser what runs, live: repl ui"),
            (
                "exec train ls",
                "a way into a running run does not exist yet: `repl allocation show RUN` names its folder",
            ),
            ("run --gpus 1 -c x", "GPUs: --gpu"),
            ("run --timeout=5m -c x", "its longest duration: --max-duration"),
        ] {
            assert_eq!(said(line).split_once("\n  fix: ").unwrap().1, fix, "{line}");
        }
    }

    #[test]
    fn a_translation_is_neither_a_command_of_ours_nor_a_lie() {
        let mut root = Line::command();
        root.build();
        for known in COMMANDS {
            for word in known.words {
                let found = root.find_subcommand(word).filter(|command| !command.is_hide_set());
                assert!(found.is_none(), "`{word}` exists");
            }
            let Some(here) = known.here else { continue };
            let words: Vec<String> = here.split(' ').map(str::to_owned).collect();
            assert!(here == "repl --version" || !read(&root, &words).path.is_empty(), "{here} does not exist");
        }
        let run = root.find_subcommand("run").unwrap();
        let has = |flag: &str| {
            let name = flag.trim_start_matches('-');
            let letter = name.chars().next().filter(|_| !flag.starts_with("--") && name.len() == 1);
            run.get_arguments().any(|it| it.get_long() == Some(name) || (letter.is_some() && it.get_short() == letter))
        };
        for known in RUN_FLAGS {
            assert!(known.words.iter().all(|word| !has(word)), "{:?} exists", known.words);
            assert!(known.here.is_none_or(has), "{:?} does not exist", known.here);
        }
    }

    #[test]
    fn slips_are_answered_with_what_was_meant() {
        for (line, answer) in [
            ("stauts", "there is no `repl stauts`\n  fix: did you mean `status`?"),
            ("lgos train -f", "there is no `repl lgos`\n  fix: did you mean `repl logs train -f`?"),
            ("frobnicate", "there is no `repl frobnicate`\n  fix: see `repl help`"),
            ("crash-point", "there is no `repl crash-point`\n  fix: see `repl help`"),
            ("control serv", "there is no `repl control serv`\n  fix: known: start, stop, status, logs, token"),
            ("artifact lst x", "there is no `repl artifact lst`\n  fix: did you mean `repl artifact ls x`?"),
            ("token revoke x", "there is no `repl token revoke`\n  fix: known: ls, create, delete, rm"),
            ("run --nmae x -c true", "`repl run` has no flag `--nmae`\n  fix: did you mean `--name`?"),
            ("ps --jsn", "`repl ps` has no flag `--jsn`\n  fix: did you mean `--json`?"),
            ("ps --frobnicate", "`repl ps` has no flag `--frobnicate`\n  fix: see `repl ps --help`"),
            ("ps train", "`repl ps` does not take `train`\n  fix: write repl ps [OPTIONS]"),
            (
                "ps --status faild",
                "--status cannot be `faild`: it is one of created, pending, running, paused, resuming, retrying, \
                 completed, failed, cancelled\n  fix: did you mean `failed`?",
            ),
            (
                "completion tcsh",
                "SHELL cannot be `tcsh`: it is one of bash, elvish, fish, powershell, zsh\n  fix: write one of these",
            ),
            ("cancel", "`repl cancel` needs a run\n  fix: the last one: repl cancel @last; `repl ps` lists them"),
            ("rm", "`repl delete` needs a run\n  fix: the last one: repl delete @last; `repl ps -a` lists them"),
            ("logs -z", "`repl logs` has no flag `-z`\n  fix: see `repl logs --help`"),
        ] {
            assert_eq!(said(line), format!("error: {answer}"), "{line}");
        }
    }

    #[test]
    fn values_that_cannot_be_are_answered_like_everything_else() {
        for (line, answer) in [
            (
                "run --retry x -c true",
                "--retry: `x` is not a number of attempts\n  fix: write a whole number from 1 to 100",
            ),
            ("logs --tail x", "--tail: `x` is not a whole number\n  fix: write it like 20"),
            ("logs --tail -1", "--tail: `-1` is not a whole number\n  fix: write it like 20"),
            ("ps --limit many", "--limit: `many` is not a whole number\n  fix: write it like 20"),
            ("run --hold 2 -c true", "--hold: `2` has no unit\n  fix: write it like 2s, 2m or 2h"),
            ("run --retry-delay 0 -c true", "--retry-delay: `0` has no unit\n  fix: write it as 0s"),
            (
                "run --budget abc -c true",
                "--budget: `abc` is not an amount of credits\n  fix: write a positive decimal number like 5 or 0.25",
            ),
            ("run --cpu 0 -c true", "--cpu: `0` is not a number of processors\n  fix: write it like 2 or 0.5"),
            ("credits add 0", "CREDITS: `0` is no amount\n  fix: write more than nothing, like 5 or 0.25"),
            ("extend train 2", "DURATION: `2` has no unit\n  fix: write it like 2s, 2m or 2h"),
            ("sim --seed x", "--seed: `x` is not a whole number\n  fix: write it like 5"),
            ("sim --jobs 0", "--jobs: 0 is not in 1..=256\n  fix: see `repl sim --help`"),
            ("logs --tail", "--tail needs a value\n  fix: write it like --tail N"),
            ("run -c true --priority", "--priority needs a value\n  fix: one of high, normal"),
            ("run --name a --name b -c true", "--name is given twice\n  fix: leave out one of them"),
            ("events -f --limit 5", "--follow and --limit cannot be used together\n  fix: leave out one of them"),
            (
                "release",
                "`repl release` needs a run\n  fix: the last one: repl release @last; `repl allocation ls` lists them",
            ),
            (
                "instance show",
                "`repl instance show` needs a machine\n  fix: write its id; `repl instance ls` lists them",
            ),
            ("completion", "`repl completion` needs SHELL\n  fix: one of bash, elvish, fish, powershell, zsh"),
            ("secret set", "`repl secret set` needs NAME\n  fix: write repl secret set [OPTIONS] <NAME>"),
        ] {
            assert_eq!(said(line), format!("error: {answer}"), "{line}");
        }
    }

    #[test]
    fn help_is_help_wherever_it_is_asked_for() {
        assert_eq!(said("artifact help"), "clap: DisplayHelp");
        let Correction::Clap(help) = help(&["ls".to_owned()]) else { panic!("help for an alias") };
        assert!(help.to_string().contains("Usage: repl ps"), "{help}");
        let Correction::Complaint(no_help) = super::help(&["lgos".to_owned()]) else { panic!("help for nothing") };
        assert!(no_help.to_string().contains("did you mean"), "{no_help}");
    }

    #[test]
    fn flags_and_their_values_are_told_from_words() {
        let mut root = Line::command();
        root.build();
        let run = root.find_subcommand("run").unwrap();
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (line, found) in [
            ("--cpu 2 python train.py", &[2, 3][..]),
            ("--cpu=2 python --detach x", &[1, 3]),
            ("-dc true x", &[2]),
            ("-ctrue x", &[1]),
            ("-d --home h x -- y", &[3]),
            ("", &[0]),
        ] {
            assert_eq!(positionals(run, &words(line)), found, "{line}");
        }
        let named = |word| value_flag(run, word).map(|(flag, value)| (flag.get_id().to_string(), value));
        for (word, name, value) in [
            ("--cpu=2", "cpu", Some("2")),
            ("--cpu", "cpu", None),
            ("--env=A=b", "env", Some("A=b")),
            ("-dc", "command", None),
            ("-ctrue", "command", Some("true")),
        ] {
            assert_eq!(named(word), Some((name.to_owned(), value)), "{word}");
        }
        assert_eq!((named("--detach"), named("--nothing=2")), (None, None));
    }
}
