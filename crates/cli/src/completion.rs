//! `repl completion`: what a shell needs to complete `repl`, printed or installed; and the hidden `repl complete`, which
//! that script calls at each Tab. What exists is asked of the control plane that runs: none is ever started for it, and
//! trouble of any kind means no candidates, silently and soon.

mod candidates;
mod install;

use crate::args::Line;
use crate::complaint::{Complaint, Done};
use crate::usage;
use candidates::{Context, FILES};
use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_complete::engine::CompletionCandidate;
use std::io::Write as _;

/// Print or install what your shell needs to complete commands, runs and machines
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl completion --install       # for the shell you are in; says what it wrote
  source <(repl completion bash)  # only in this shell
  repl completion fish | source")]
pub struct CompletionArgs {
    /// The shell; with --install, the one you are in unless said
    #[arg(required_unless_present = "install")]
    shell: Option<Shell>,
    /// Load it in every new shell: one line in .bashrc or .zshrc, or a file for fish
    #[arg(long)]
    install: bool,
}

/// Print the candidates for a word of a command line; called by the script of `repl completion`
#[derive(Debug, clap::Args)]
pub struct CompleteArgs {
    shell: Shell,
    /// Which of the words is being written
    index: usize,
    /// What of that word the shell replaces by a candidate; all of it unless said
    #[arg(long)]
    written: Option<String>,
    /// The command line, `repl` included
    #[arg(last = true)]
    words: Vec<String>,
}

const BASH: &str = r#"_repl() {
    local IFS=$'\n'
    COMPREPLY=()
    mapfile -t COMPREPLY < <(command repl complete bash "$COMP_CWORD" "--written=$2" -- "${COMP_WORDS[@]}" 2>/dev/null)
    if [[ ${COMPREPLY[0]-} == :files ]]; then
        COMPREPLY=()
        compopt -o default
    elif [[ ${COMPREPLY[0]-} == *= ]]; then
        compopt -o nospace
    fi
}
complete -o nosort -F _repl repl 2>/dev/null || complete -F _repl repl
"#;

const ZSH: &str = r#"#compdef repl
_repl() {
    local -a found
    found=("${(@f)$(command repl complete zsh $((CURRENT - 1)) -- "${words[@]}" 2>/dev/null)}")
    if [[ ${found[1]} == :files ]]; then
        compset -P '*='
        _files
    elif [[ -n ${found[1]} ]]; then
        _describe -V repl found
    fi
}
compdef _repl repl
"#;

const FISH: &str = r#"function __repl_complete
    set -l words (commandline --current-process --tokenize --cut-at-cursor)
    set -l current (commandline --current-token --cut-at-cursor)
    set -l found (command repl complete fish (count $words) -- $words "$current" 2>/dev/null)
    if test "$found[1]" = :files
        __fish_complete_path (string replace --regex '^--[^=]*=' '' -- "$current")
    else if set -q found[1]
        printf '%s\n' $found
    end
end
complete --command repl --erase
complete --command repl --no-files --keep-order --arguments '(__repl_complete)'
"#;

pub fn completion(args: &CompletionArgs) -> Done {
    if args.install {
        return install::install(args.shell, &install::Surroundings::of_this_process());
    }
    let mut out = std::io::stdout();
    let written = match args.shell {
        Some(Shell::Bash) => out.write_all(BASH.as_bytes()),
        Some(Shell::Zsh) => out.write_all(ZSH.as_bytes()),
        Some(Shell::Fish) => out.write_all(FISH.as_bytes()),
        Some(other) => {
            clap_complete::generate(other, &mut Line::command(), "repl", &mut out);
            Ok(())
        }
        None => Ok(()),
    };
    written.map_err(|error| Complaint::refused(format!("cannot write the output: {error}")))?;
    Ok(0)
}

pub fn complete(args: CompleteArgs) -> Done {
    let mut out = std::io::stdout();
    for line in lines(args.shell, args.words, args.index, args.written.as_deref()) {
        // A shell that has gone wants nothing more.
        if writeln!(out, "{line}").is_err() {
            break;
        }
    }
    Ok(0)
}

/// One candidate a line, as the shell's script reads it; a lone `:files` asks the shell for its own files.
fn lines(shell: Shell, mut words: Vec<String>, index: usize, written: Option<&str>) -> Vec<String> {
    // The line may go on behind the cursor.
    words.truncate(index + 1);
    words.resize(index + 1, String::new());
    if shell == Shell::Bash {
        words = joined(words);
    }
    let index = words.len() - 1;
    let cut = written.map_or(0, |written| words[index].len().saturating_sub(written.len()));
    let Some(context) = Context::of(&words) else { return Vec::new() };
    let mut command = candidates::teach(Line::command(), &context.into());
    let found = clap_complete::engine::complete(
        &mut command,
        words.iter().map(Into::into).collect(),
        index,
        std::env::current_dir().ok().as_deref(),
    );
    let mut found = found.unwrap_or_default();
    let nothing_written = words[index].is_empty();
    let text = |it: &CompletionCandidate| match it.get_id().and_then(|id| id.strip_prefix("command::")) {
        // Not one of its other names.
        Some(name) if nothing_written => name.to_owned(),
        _ => it.get_value().to_string_lossy().into_owned(),
    };
    if found.iter().any(|it| text(it).ends_with(FILES)) {
        return vec![FILES.to_owned()];
    }
    // Nothing is written yet: what exists is of interest, flags only where there is nothing else.
    if nothing_written && found.iter().any(|it| !text(it).starts_with('-')) {
        found.retain(|it| !text(it).starts_with('-'));
    }
    found.iter().map(|it| line(shell, &text(it)[cut.min(text(it).len())..], it)).collect()
}

fn line(shell: Shell, value: &str, candidate: &CompletionCandidate) -> String {
    let help =
        candidate.get_help().map(|help| candidates::harmless(help.to_string().lines().next().unwrap_or_default()));
    match (shell, help.filter(|help| !help.is_empty())) {
        (Shell::Zsh, Some(help)) => format!("{}:{help}", value.replace(':', "\\:")),
        (Shell::Zsh, None) => value.replace(':', "\\:"),
        (Shell::Fish, Some(help)) => format!("{value}\t{help}"),
        _ => value.to_owned(),
    }
}

/// Bash makes words of their own of `@` and `=`, and leaves a quote where it begins: puts them together again.
fn joined(words: Vec<String>) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    for word in words {
        let goes_on = match (joined.last(), word.as_str()) {
            (Some(last), "=") => last.starts_with("--"),
            (Some(last), _) => last == "@" || (last.starts_with("--") && last.ends_with('=')),
            (None, _) => false,
        };
        match joined.last_mut().filter(|_| goes_on) {
            Some(last) => last.push_str(&word),
            None => joined.push(word.trim_start_matches(['\'', '"']).to_owned()),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(shell: Shell, line: &str) -> Vec<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let index = words.len() - 1;
        lines(shell, words, index, None)
    }

    #[test]
    fn commands_flags_and_values_are_completed() {
        let values = |line: &str| offered(Shell::Bash, line).join(" ");
        assert_eq!(values("repl stat"), "status");
        assert_eq!(values("repl l"), "ls logs login logout");
        assert_eq!(values("repl secret d"), "delete");
        assert_eq!(values("repl run --max"), "--max-duration");
        assert_eq!(values("repl run --priority "), "high normal");
        assert_eq!(values("repl run --file tr"), ":files");
        assert_eq!(values("repl run x.repl.yml --file = tr"), ":files");
        assert_eq!(values("repl run -- python tr"), ":files");
        assert_eq!(values("repl frobnicate "), "");
        assert_eq!(values("repl artifact frobnicate "), "");
        assert!(values("repl ").starts_with("run attach ps status why logs events cancel "), "{}", values("repl "));
        assert!(offered(Shell::Zsh, "repl stat")[0].starts_with("status:Show a run"));
        assert!(offered(Shell::Fish, "repl stat")[0].starts_with("status\tShow a run"));
    }

    /// Each shell reads its own script, where it is installed; it runs nothing of it.
    #[test]
    fn each_script_is_one_that_its_shell_can_read() {
        for (shell, script) in [("bash", BASH), ("zsh", ZSH), ("fish", FISH)] {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("script");
            let check = |text: &str| {
                std::fs::write(&file, text).unwrap();
                std::process::Command::new(shell).arg("-n").arg(&file).output()
            };
            let read = match check(script) {
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    crate::skip::skip("shells", &format!("{shell} is not installed"));
                    continue;
                }
                Err(error) => panic!("{shell}: {error}"),
            };
            assert!(read.status.success(), "{shell}: {}", String::from_utf8_lossy(&read.stderr));
            let cut = check(&script[..script.len() / 2]).unwrap();
            assert!(!cut.status.success(), "{shell} would read anything");
        }
    }

    #[test]
    fn what_bash_cut_is_put_together() {
        for (cut_up, whole) in [
            (&["repl", "logs", "@", "l"][..], &["repl", "logs", "@l"][..]),
            (&["repl", "logs", "@"], &["repl", "logs", "@"]),
            (&["repl", "run", "--cpu", "=", "2"], &["repl", "run", "--cpu=2"]),
            (&["repl", "run", "--cpu", "="], &["repl", "run", "--cpu="]),
            (&["repl", "run", "--cpu", "2"], &["repl", "run", "--cpu", "2"]),
            (&["repl", "logs", "'tr"], &["repl", "logs", "tr"]),
        ] {
            assert_eq!(joined(cut_up.iter().map(|it| (*it).to_owned()).collect()), whole);
        }
    }

    #[test]
    fn a_candidate_is_what_the_shell_replaces() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines(Shell::Bash, words("repl run --priority = h"), 4, Some("h")), ["high"]);
        assert_eq!(lines(Shell::Bash, words("repl run --priority ="), 3, Some("")), ["high", "normal"]);
        assert_eq!(lines(Shell::Zsh, words("repl run --priority=h"), 2, None), ["--priority=high"]);
        assert_eq!(lines(Shell::Zsh, words("repl run --pri x"), 2, None)[0].split(':').next(), Some("--priority"));
    }
}
