//! `repl run python train.py` and the like: the first word of `repl run` is a run file, so a command written there is
//! answered with the line to type, the files it names included. Only suggests; runs nothing.

use crate::complaint::Complaint;
use crate::{run_file, usage};
use clap::Command;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path};

/// What runs a script with such an ending.
const INTERPRETERS: &[(&str, &str)] = &[
    ("py", "python3"),
    ("sh", "sh"),
    ("bash", "bash"),
    ("js", "node"),
    ("mjs", "node"),
    ("rb", "ruby"),
    ("pl", "perl"),
    ("R", "Rscript"),
    ("jl", "julia"),
    ("lua", "lua"),
];
/// Of a script's first line.
const LONGEST_FIRST_LINE: u64 = 256;

/// Refuses what was given as a run file and is none. `words` are all of the command line, the program's name first.
pub fn check(path: &Path, words: &[String]) -> Result<(), Complaint> {
    if run_file::is_one(path) {
        return Ok(());
    }
    let mut root = <crate::args::Line as clap::CommandFactory>::command();
    root.build();
    let read = usage::read(&root, words);
    let rest = &words[read.rest.min(words.len())..];
    Err(accepted(read.command, rest, Path::new("")).unwrap_or_else(|| not_a_run_file(&path.display().to_string())))
}

/// The answer to a line that reads well, except that its only word is no run file: the flags around it are ours.
fn accepted(run: &Command, words: &[String], here: &Path) -> Option<Complaint> {
    let at = *usage::positionals(run, words).first()?;
    let word = &words[at];
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let flags = [&words[..at], &words[at + 1..end]].concat();
    let argv = words.get(end + 1..).unwrap_or_default();
    let has_command = !argv.is_empty() || flags.iter().any(|flag| is_command(run, flag));
    let complaint = not_a_run_file(word);
    Some(if has_command {
        // The command is there: the word can only be something that goes with it.
        let files = files_in(std::slice::from_ref(word), &flags, here);
        if files.is_empty() {
            return Some(complaint.fix("leave it out, or send it along with --file PATH"));
        }
        complaint.fix(line(&flags, &files, &Work::Argv(argv.to_vec())))
    } else {
        proposed(complaint, &flags, std::slice::from_ref(word), here)
    })
}

/// The answer to a line that cannot be read: its first word is no run file, so from there on it is a command.
pub fn rejected(run: &Command, words: &[String], wrong: &str, here: &Path) -> Option<Complaint> {
    let at = *usage::positionals(run, words).first()?;
    let is_it = |word: &String| word == wrong || word.split('=').next() == Some(wrong);
    let is_before = wrong.starts_with('-') && words.iter().position(is_it).is_some_and(|place| place < at);
    if is_before || run_file::is_one(&here.join(&words[at])) {
        return None;
    }
    Some(proposed(not_a_run_file(&words[at]), &words[..at], &words[at..], here))
}

/// `repl train.py`, `repl train.repl.yml`: with `run` left out.
pub fn without_run(words: &[String], here: &Path) -> Option<String> {
    let first = words.first()?;
    let path = &here.join(first);
    if !path.is_file() && !first.contains(' ') && run_file_called(first, here).is_none() {
        return None;
    }
    if run_file::is_one(path) {
        return Some(format!("to submit this file: repl run {}", quoted(words)));
    }
    proposed(not_a_run_file(first), &[], words, here).fix
}

fn not_a_run_file(word: &str) -> Complaint {
    Complaint::usage(format!("`{word}` is not a run file (*.repl.yml); a command is written after -- or -c"))
}

/// The run file whose name begins with this word, as in `repl run train` for train.repl.yml.
fn run_file_called(word: &str, here: &Path) -> Option<String> {
    let names = [".repl.yml", ".repl.yaml", ".yml", ".yaml"].map(|ending| format!("{word}{ending}"));
    names.into_iter().find(|name| here.join(name).is_file())
}

fn proposed(complaint: Complaint, flags: &[String], words: &[String], here: &Path) -> Complaint {
    if let Some(name) = run_file_called(&words[0], here).filter(|_| !here.join(&words[0]).is_file()) {
        let typed = [&["repl".to_owned(), "run".to_owned()], flags, &[name], &words[1..]].concat();
        return complaint.fix(quoted(&typed));
    }
    if here.join(&words[0]).is_dir() && words.len() == 1 {
        return complaint.fix(format!(
            "to send this folder along: repl run --file {} -c 'COMMAND'",
            quoted(std::slice::from_ref(&words[0]))
        ));
    }
    let work = match work(words, here) {
        Ok(work) => work,
        Err(fix) => return complaint.fix(fix),
    };
    let files = files_in(work.words().as_slice(), flags, here);
    let typed = line(flags, &files, &work);
    if files.is_empty() && !needs_files(&work) {
        return complaint.fix(typed);
    }
    complaint.fix(format!("{typed}\n       (only what --file names is sent; `--file .` sends this folder)"))
}

/// What is to be run.
enum Work {
    Argv(Vec<String>),
    /// A line for a shell.
    Line(String),
}

impl Work {
    fn words(&self) -> Vec<String> {
        match self {
            Work::Argv(words) => words.clone(),
            Work::Line(text) => text.split_whitespace().map(|word| word.trim_matches(['\'', '"']).to_owned()).collect(),
        }
    }
}

/// These words as something that can be run, or what to do about them.
fn work(words: &[String], here: &Path) -> Result<Work, String> {
    let first = words[0].as_str();
    if words.len() == 1 && first.contains(char::is_whitespace) {
        return Ok(Work::Line(first.to_owned()));
    }
    let path = here.join(first);
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let interpreter = INTERPRETERS.iter().find(|(known, _)| *known == ending).map(|(_, program)| (*program).to_owned());
    if !path.is_file() {
        return match interpreter {
            Some(_) => Err(format!("there is no {first} in this folder: check the path")),
            None => Ok(Work::Argv(words.to_vec())),
        };
    }
    let begun = |program: Vec<String>| Ok(Work::Argv([program.as_slice(), words].concat()));
    let is_executable = path.metadata().is_ok_and(|found| found.permissions().mode() & 0o111 != 0);
    if is_executable {
        let here = if first.contains('/') { first.to_owned() } else { format!("./{first}") };
        return Ok(Work::Argv([&[here], &words[1..]].concat()));
    }
    match interpreter.map(|program| vec![program]).or_else(|| first_line_program(&path)) {
        Some(program) => begun(program),
        None => Err(format!(
            "to send this file along: repl run --file {} -c 'COMMAND'",
            quoted(std::slice::from_ref(&words[0]))
        )),
    }
}

/// The program of a `#!` line, without its folder.
fn first_line_program(path: &Path) -> Option<Vec<String>> {
    let mut text = Vec::new();
    std::fs::File::open(path).ok()?.take(LONGEST_FIRST_LINE).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut words = text.strip_prefix("#!")?.lines().next()?.split_whitespace();
    let program = Path::new(words.next()?).file_name()?.to_str()?;
    let program = if program == "env" { words.find(|word| !word.starts_with('-'))? } else { program };
    Some(vec![program.to_owned()])
}

/// The words that name something below this folder, each once; what was said with --file already is left out.
fn files_in(words: &[String], flags: &[String], here: &Path) -> Vec<String> {
    let mut files: Vec<String> = Vec::new();
    for word in words {
        // As in `--config=conf.json`.
        let path = match word.strip_prefix('-').and_then(|flag| flag.split_once('=')) {
            Some((_, value)) => value,
            None => word.strip_prefix("./").unwrap_or(word),
        };
        let is_below =
            Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        let is_said = flags.iter().any(|flag| flag == path || flag.ends_with(&format!("={path}")));
        if is_below && !path.is_empty() && here.join(path).exists() && !is_said && !files.iter().any(|it| it == path) {
            files.push(path.to_owned());
        }
    }
    match files.iter().any(|file| file == ".") {
        true => vec![".".to_owned()],
        false => files,
    }
}

/// Whether such a command hardly works without the files around it.
fn needs_files(work: &Work) -> bool {
    const NEEDY: &[&str] =
        &["make", "cargo", "npm", "node", "pytest", "uv", "poetry", "go", "torchrun", "accelerate", "tox"];
    let words = work.words();
    let first = words.first().map(String::as_str).unwrap_or_default();
    words.len() > 1 && (NEEDY.contains(&first) || first.starts_with("python"))
}

/// The line to type.
fn line(flags: &[String], files: &[String], work: &Work) -> String {
    let mut words = vec!["repl".to_owned(), "run".to_owned()];
    words.extend(flags.iter().cloned());
    for file in files {
        words.extend(["--file".to_owned(), file.clone()]);
    }
    match work {
        Work::Line(text) => words.extend(["-c".to_owned(), text.clone()]),
        Work::Argv(argv) if argv.is_empty() => {}
        Work::Argv(argv) => {
            words.push("--".to_owned());
            words.extend(argv.iter().cloned());
        }
    }
    quoted(&words)
}

fn is_command(run: &Command, flag: &str) -> bool {
    usage::value_flag(run, flag).is_some_and(|(flag, _)| flag.get_id() == "command")
}

/// Words as a shell reads them again.
pub fn quoted(words: &[String]) -> String {
    words.iter().map(|word| quoted_word(word)).collect::<Vec<_>>().join(" ")
}

fn quoted_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory as _, Parser as _};

    /// A folder with a project in it.
    fn project() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("train.py", "import model\n");
        write("conf.json", "{}\n");
        write("with space.py", "\n");
        write("fit", "#!/usr/bin/env -S python3 -u\n");
        write("go.sh", "echo hi\n");
        write("tool", "#!/bin/sh\n");
        write("task", "type: task\ncommands: [x]\n");
        write("data.csv", "type,name\n");
        write("mid.repl.yml", "type: task\ncommands: [x]\n");
        std::fs::create_dir(dir.path().join("src")).unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path().join("tool"), mode).unwrap();
        dir
    }

    /// What is answered to `repl run` with these words in that folder.
    fn fix(words: &[&str]) -> String {
        let dir = project();
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let mut root = crate::args::Line::command();
        root.build();
        let run = root.find_subcommand("run").unwrap();
        let line = ["repl", "run"].into_iter().chain(words.iter().map(String::as_str));
        let complaint = match crate::args::Line::try_parse_from(line) {
            Ok(_) => accepted(run, &words, dir.path()),
            Err(error) => {
                let Some(clap::error::ContextValue::String(wrong)) = error.get(clap::error::ContextKind::InvalidArg)
                else {
                    panic!("{error}")
                };
                rejected(run, &words, wrong, dir.path())
            }
        };
        let fix = complaint.map(|complaint| complaint.fix.unwrap()).unwrap_or_default();
        fix.lines().next().unwrap_or_default().to_owned()
    }

    #[test]
    fn a_command_is_answered_with_the_line_to_type() {
        for (words, line) in [
            (&["python", "train.py"][..], "repl run --file train.py -- python train.py"),
            (&["train.py"], "repl run --file train.py -- python3 train.py"),
            (&["train.py", "--epochs", "5"], "repl run --file train.py -- python3 train.py --epochs 5"),
            (&["train.py", "--name", "x"], "repl run --name x --file train.py -- python3 train.py"),
            (
                &["--cpu", "2", "python", "train.py", "--cpu", "3"],
                "repl run --cpu 2 --file train.py -- python train.py --cpu 3",
            ),
            (&["-f", "train.py", "python", "train.py"], "repl run -f train.py -- python train.py"),
            (&["python train.py > out"], "repl run --file train.py -c 'python train.py > out'"),
            (&["python", "with space.py"], "repl run --file 'with space.py' -- python 'with space.py'"),
            (&["echo", "it's", "$HOME"], r"repl run -- echo 'it'\''s' '$HOME'"),
            (
                &["python", "train.py", "--config=conf.json"],
                "repl run --file train.py --file conf.json -- python train.py --config=conf.json",
            ),
            (&["ls", "-la"], "repl run -- ls -la"),
            (&["hostname"], "repl run -- hostname"),
            (&["pytest", "."], "repl run --file . -- pytest ."),
            (&["fit"], "repl run --file fit -- python3 fit"),
            (&["go.sh", "x"], "repl run --file go.sh -- sh go.sh x"),
            (&["tool"], "repl run --file tool -- ./tool"),
            (&["./tool", "x"], "repl run --file tool -- ./tool x"),
            (&["train.py", "-c", "python train.py"], "repl run -c 'python train.py' --file train.py"),
            (&["train.py", "--command=python train.py"], "repl run '--command=python train.py' --file train.py"),
            (&["train.py", "--", "python", "train.py"], "repl run --file train.py -- python train.py"),
            (&["mid"], "repl run mid.repl.yml"),
            (&["--cpu", "2", "mid", "--detach"], "repl run --cpu 2 --detach mid.repl.yml"),
            (&["gone.py"], "there is no gone.py in this folder: check the path"),
            (&["data.csv"], "to send this file along: repl run --file data.csv -c 'COMMAND'"),
            (&["src"], "to send this folder along: repl run --file src -c 'COMMAND'"),
        ] {
            assert_eq!(fix(words), line, "{words:?}");
        }
    }

    #[test]
    fn what_is_said_is_what_a_shell_reads() {
        let words = ["a b", "it's", "", "$X", "`x`", "~", "*", "plain-1.2/x", "\"q\"", "a\nb"].map(str::to_owned);
        let output = std::process::Command::new("sh")
            .args(["-c", &format!("printf '%s\\0' {}", quoted(&words))])
            .output()
            .unwrap();
        let read: Vec<&str> = std::str::from_utf8(&output.stdout).unwrap().trim_end_matches('\0').split('\0').collect();
        assert_eq!(read, words);
    }

    #[test]
    fn a_slip_before_the_command_is_not_taken_for_it() {
        assert_eq!(fix(&["--nmae", "x", "train.py"]), "");
        assert_eq!(fix(&["task", "--nmae", "x"]), "", "a run file without its usual ending");
        assert_eq!(fix(&["a.repl.yml", "x"]), "");
    }

    #[test]
    fn run_may_be_left_out() {
        let dir = project();
        let fix =
            |words: &[&str]| without_run(&words.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>(), dir.path());
        assert_eq!(fix(&["task", "--cpu", "2"]).unwrap(), "to submit this file: repl run task --cpu 2");
        assert!(fix(&["train.py"]).unwrap().starts_with("repl run --file train.py -- python3 train.py\n"));
        assert_eq!(fix(&["mid"]).unwrap(), "repl run mid.repl.yml");
        assert_eq!(fix(&["frobnicate"]), None);
    }
}
