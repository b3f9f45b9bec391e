//! `repl completion --install`: one line in the file a shell reads at its start, or a file of our own for fish. Only adds,
//! says what it wrote, and does nothing the second time.

use crate::complaint::{Complaint, Done};
use clap_complete::Shell;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// What decides where it goes.
pub struct Surroundings {
    pub home: Option<PathBuf>,
    pub zdotdir: Option<PathBuf>,
    pub config: Option<PathBuf>,
    /// The program this command was started by.
    pub parent: Option<String>,
    /// The user's shell, by its path.
    pub login: Option<String>,
    /// Whether a new shell finds `repl`.
    pub is_in_path: bool,
}

impl Surroundings {
    pub fn of_this_process() -> Surroundings {
        let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let parent = std::fs::read_to_string(format!("/proc/{}/comm", nix::unistd::getppid())).ok();
        let path = std::env::var_os("PATH").unwrap_or_default();
        Surroundings {
            home: folder("HOME"),
            zdotdir: folder("ZDOTDIR"),
            config: folder("XDG_CONFIG_HOME"),
            parent: parent.map(|name| name.trim().trim_start_matches('-').to_owned()),
            login: std::env::var("SHELL").ok(),
            is_in_path: std::env::split_paths(&path).any(|folder| folder.join("repl").is_file()),
        }
    }

    /// The shell that was asked for, the one we are in, or the user's.
    fn shell(&self, asked: Option<Shell>) -> Option<Shell> {
        let by_name = |name: &str| match Path::new(name).file_name()?.to_str()? {
            "bash" => Some(Shell::Bash),
            "zsh" => Some(Shell::Zsh),
            "fish" => Some(Shell::Fish),
            _ => None,
        };
        asked.or_else(|| by_name(self.parent.as_deref()?)).or_else(|| by_name(self.login.as_deref()?))
    }
}

const BASH_LINE: &str = r#"command -v repl >/dev/null && eval "$(repl completion bash)""#;
/// `compdef` is there only after `compinit`, which some set-ups never call.
const ZSH_LINE: &str = r#"command -v repl >/dev/null && { (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }; eval "$(repl completion zsh)" }"#;
const FISH_LINE: &str = "command --query repl; and repl completion fish | source";

pub fn install(asked: Option<Shell>, around: &Surroundings) -> Done {
    let Some(shell) = around.shell(asked) else {
        return Err(Complaint::usage("cannot tell which shell this is").fix("say it: repl completion bash --install"));
    };
    let no_home = || Complaint::usage("HOME is not set: there is no place to write to");
    let home = around.home.as_deref();
    let (path, line) = match shell {
        Shell::Bash => (home.ok_or_else(no_home)?.join(".bashrc"), BASH_LINE),
        Shell::Zsh => (around.zdotdir.as_deref().or(home).ok_or_else(no_home)?.join(".zshrc"), ZSH_LINE),
        Shell::Fish => {
            let config = around.config.clone().or_else(|| Some(home?.join(".config"))).ok_or_else(no_home)?;
            (config.join("fish/completions/repl.fish"), FISH_LINE)
        }
        other => {
            return Err(Complaint::usage(format!("--install does not know {other}"))
                .fix(format!("load it yourself: repl completion {other}")));
        }
    };
    if add(&path, line)? {
        eprintln!("repl: added to {}: {line}", path.display());
        eprintln!("repl: new shells complete `repl`; in this one: {}", in_this_shell(shell));
    } else {
        eprintln!("repl: {} has it already", path.display());
    }
    if !around.is_in_path {
        eprintln!("repl: `repl` is not in PATH yet, so nothing is completed: cargo install --path crates/cli");
    }
    Ok(0)
}

fn in_this_shell(shell: Shell) -> String {
    match shell {
        Shell::Fish => "repl completion fish | source".to_owned(),
        other => format!("eval \"$(repl completion {other})\""),
    }
}

/// Adds a line at the end of a file, unless one that loads it is there. Never rewrites what others wrote: the file may be
/// a link into a repository of dotfiles.
fn add(path: &Path, line: &str) -> Done<bool> {
    let failed = |error: std::io::Error| Complaint::file("write", path, &error);
    let text = match std::fs::read(path) {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(Complaint::file("read", path, &error)),
    };
    if text.lines().any(|there| there.trim() == line) {
        return Ok(false);
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).map_err(failed)?;
    let start = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    file.write_all(format!("{start}{line}\n").as_bytes()).map_err(failed)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(home: &Path, parent: &str, login: &str) -> Surroundings {
        Surroundings {
            home: Some(home.to_owned()),
            zdotdir: None,
            config: None,
            parent: Some(parent.to_owned()),
            login: Some(login.to_owned()),
            is_in_path: true,
        }
    }

    #[test]
    fn it_is_added_once_behind_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(".bashrc"), "alias x=y").unwrap();
        for _ in 0..2 {
            install(None, &around(dir.path(), "bash", "/bin/zsh")).unwrap();
        }
        let text = std::fs::read_to_string(dir.path().join(".bashrc")).unwrap();
        assert_eq!(text, format!("alias x=y\n{BASH_LINE}\n"));
    }

    #[test]
    fn the_shell_is_the_one_we_are_in_or_the_users() {
        let dir = tempfile::tempdir().unwrap();
        install(None, &around(dir.path(), "make", "/usr/bin/fish")).unwrap();
        assert!(dir.path().join(".config/fish/completions/repl.fish").is_file());
        install(None, &around(dir.path(), "zsh", "/bin/bash")).unwrap();
        assert!(dir.path().join(".zshrc").is_file() && !dir.path().join(".bashrc").exists());
        install(Some(Shell::Bash), &around(dir.path(), "zsh", "/bin/zsh")).unwrap();
        assert!(dir.path().join(".bashrc").is_file());
        let complaint = install(None, &around(dir.path(), "make", "/bin/tcsh")).unwrap_err();
        assert_eq!(complaint.fix.as_deref(), Some("say it: repl completion bash --install"));
        assert!(install(Some(Shell::Elvish), &around(dir.path(), "zsh", "")).is_err());
    }

    #[test]
    fn a_link_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("dotfile"), "").unwrap();
        std::os::unix::fs::symlink("dotfile", dir.path().join(".zshrc")).unwrap();
        install(Some(Shell::Zsh), &around(dir.path(), "zsh", "")).unwrap();
        assert!(dir.path().join(".zshrc").is_symlink());
        assert_eq!(std::fs::read_to_string(dir.path().join("dotfile")).unwrap(), format!("{ZSH_LINE}\n"));
    }
}
