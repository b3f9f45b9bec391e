//! The init of jobs: a script that prepares this machine once for all jobs that bring the same one. It runs in the first job's keeper,
//! before its command, so its output is part of that job's log and it ends with that job. What a script that did not end well has left is
//! removed before the next one begins.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use wire::runner::Init;

/// Where jobs find what their init has made.
pub const VARIABLE: &str = "REPL_INIT";
/// In the folder: the checksum of the init that ended well. Inside of it, because a sandbox shows nothing else.
const MARK: &str = ".repl-init";

/// The mark is renamed into place, so that half of it is never read. The command takes the shell's place; a program that is not found is
/// then the shell's to report.
const WRAPPER: &str = r#"checksum=$1 script=$2
shift 2
(cd "$REPL_INIT" && exec /bin/sh -e -c "$script" </dev/null)
code=$?
if [ "$code" -ne 0 ]; then
    echo "repl: the init script ended with code $code, and the command was not started" >&2
    exit "$code"
fi
printf %s "$checksum" >"$REPL_INIT/.repl-init.new" && mv "$REPL_INIT/.repl-init.new" "$REPL_INIT/.repl-init" || exit 1
exec "$@""#;

pub fn folder(instance: &Path) -> PathBuf {
    instance.join("init")
}

/// Whether this very init has ended well here.
pub fn is_done(instance: &Path, init: &Init) -> bool {
    std::fs::read(folder(instance).join(MARK)).is_ok_and(|mark| mark == init.checksum.as_bytes())
}

/// What is started in place of the command: itself where the init has ended well, else the init and then the command.
pub fn before(instance: &Path, init: &Init, command: Vec<String>) -> io::Result<Vec<String>> {
    if is_done(instance, init) {
        return Ok(command);
    }
    let own = folder(instance);
    folder::remove(&own)?;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&own)?;
    let first = ["/bin/sh", "-c", WRAPPER, "repl-init", &init.checksum, &init.script].map(str::to_owned);
    Ok(first.into_iter().chain(command).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Output};

    fn run(instance: &Path, script: &str, command: &str) -> Output {
        let init = Init { script: script.to_owned(), checksum: format!("of {script}") };
        let command = ["/bin/sh", "-c", command].map(str::to_owned).to_vec();
        let argv = before(instance, &init, command).unwrap();
        Command::new(&argv[0]).args(&argv[1..]).env(VARIABLE, folder(instance)).output().unwrap()
    }

    #[test]
    fn an_init_runs_once_and_another_one_starts_from_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let count = "echo x >> count; echo made";
        for said in ["made\nx\n", "x\n", "x\n"] {
            let done = run(dir.path(), count, "cat \"$REPL_INIT/count\"");
            assert_eq!((done.status.code(), String::from_utf8_lossy(&done.stdout).as_ref()), (Some(0), said));
        }
        let done = run(dir.path(), "true", "ls -A \"$REPL_INIT\"");
        assert_eq!(String::from_utf8_lossy(&done.stdout), ".repl-init\n", "nothing is left of the first");
    }

    #[test]
    fn what_a_script_that_fails_has_left_is_removed_and_its_command_does_not_start() {
        let dir = tempfile::tempdir().unwrap();
        let fails = "touch half; false; touch whole";
        for _ in 0..2 {
            let done = run(dir.path(), fails, "echo started");
            assert_eq!((done.status.code(), done.stdout.len()), (Some(1), 0));
            assert!(String::from_utf8_lossy(&done.stderr).contains("the init script ended with code 1"));
            assert!(!folder(dir.path()).join("whole").exists());
        }
        let init = Init { script: fails.to_owned(), checksum: format!("of {fails}") };
        assert!(!is_done(dir.path(), &init));
        run(dir.path(), "true", "true");
        assert!(!folder(dir.path()).join("half").exists());
    }

    #[test]
    fn the_command_keeps_its_words_and_its_code() {
        let dir = tempfile::tempdir().unwrap();
        let init = Init { script: "true".to_owned(), checksum: "c".to_owned() };
        let command = ["printf", "%s|", "a b", "", "$HOME"].map(str::to_owned).to_vec();
        let argv = before(dir.path(), &init, command).unwrap();
        let done = Command::new(&argv[0]).args(&argv[1..]).env(VARIABLE, folder(dir.path())).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&done.stdout), "a b||$HOME|");
        assert_eq!(run(dir.path(), "exit 0", "exit 7").status.code(), Some(7));
    }
}
