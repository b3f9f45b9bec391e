//! A program of the owner's that is told of questions to people: started without a shell, JSON on its standard input, bounded by its
//! caller's time limit. It gets few variables of this process, because those may hold secrets.

use crate::tool::{Tool, ToolAnswer, ToolCall, ToolFailure, ToolFuture, ToolLog};
use model::Effect;
use model::recovery::ErrorClass;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Stdio;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

/// Of what it says on stderr, so much is repeated in an error.
const SAID_BYTES: u64 = 4 << 10;
const PASSED_ON: [&str; 6] = ["PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR"];

/// The program with its arguments, and the folder in which it starts.
#[derive(Debug, Clone)]
pub struct Notifier {
    program: String,
    arguments: Vec<String>,
    folder: PathBuf,
}

impl Notifier {
    /// None without a program.
    pub fn new(exec: &[String], folder: PathBuf) -> Option<Notifier> {
        let (program, arguments) = exec.split_first()?;
        Some(Notifier { program: program.clone(), arguments: arguments.to_vec(), folder })
    }

    fn start(&self) -> Result<Child, ToolFailure> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(&self.folder).env_clear();
        for name in PASSED_ON {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        command.spawn().map_err(|error| {
            failed(Effect::None, "not_started", format!("`{}` cannot be started: {error}", self.program))
        })
    }

    async fn tell(&self, input: &Value) -> Result<ToolAnswer, ToolFailure> {
        let mut child = self.start()?;
        let (mut stdin, stderr) = (child.stdin.take(), child.stderr.take());
        let text = format!("{input}\n");
        // A program that does not read, or ends before it has read all, is no error by that alone.
        let write = async {
            if let Some(stdin) = &mut stdin {
                stdin.write_all(text.as_bytes()).await.ok();
            }
            drop(stdin.take());
        };
        let read = async {
            let mut said = Vec::new();
            if let Some(mut stderr) = stderr {
                (&mut stderr).take(SAID_BYTES).read_to_end(&mut said).await.ok();
                tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await.ok();
            }
            String::from_utf8_lossy(&said).trim().to_owned()
        };
        let ((), said, ended) = tokio::join!(write, read, child.wait());
        let ended = ended.map_err(|error| failed(Effect::Perhaps, "lost", error.to_string()))?;
        if ended.success() {
            return Ok(ToolAnswer { output: Value::Null, usage: None });
        }
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        Err(failed(Effect::Perhaps, "failed", format!("`{}` ended with {ended}{said}", self.program)))
    }
}

impl Tool for Notifier {
    fn call<'a>(&'a self, call: &'a ToolCall, _: &'a dyn ToolLog) -> ToolFuture<'a> {
        Box::pin(self.tell(&call.input))
    }
}

fn failed(effect: Effect, code: &str, message: String) -> ToolFailure {
    ToolFailure::new(ErrorClass::Transient, effect, code, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeMap;
    use std::time::Duration;

    struct NoLog;
    impl ToolLog for NoLog {
        fn write(&self, _: &[u8]) {}
    }

    async fn told(exec: &[&str], folder: &std::path::Path) -> Result<ToolAnswer, ToolFailure> {
        let exec: Vec<String> = exec.iter().map(|word| word.to_string()).collect();
        let notifier = Notifier::new(&exec, folder.to_owned()).unwrap();
        let (input, secrets) = (json!({ "id": "qst_1" }), BTreeMap::new());
        let call = ToolCall { key: "qst_1".into(), input, secrets, timeout_ms: None };
        notifier.call(&call, &NoLog).await
    }

    #[tokio::test]
    async fn a_program_reads_the_question_and_gets_no_shell() {
        let folder = tempfile::tempdir().unwrap();
        told(&["tee", "$(touch shell)"], folder.path()).await.unwrap();
        let written = std::fs::read_to_string(folder.path().join("$(touch shell)")).unwrap();
        assert_eq!(written, "{\"id\":\"qst_1\"}\n");
        assert!(!folder.path().join("shell").exists());
    }

    #[tokio::test]
    async fn how_it_failed_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().to_owned();
        let table: [(&[&str], &str, &str); 3] = [
            (&["/nonexistent/program"], "not_started", "cannot be started"),
            (&["sh", "-c", "echo sorry >&2; exit 3"], "failed", "exit status: 3: sorry"),
            (&["sh", "-c", "exec 0<&-; head -c 1000000 /dev/zero >&2; exit 1"], "failed", "exit status: 1"),
        ];
        for (exec, code, words) in table {
            let error = told(exec, &here).await.unwrap_err().failure.error;
            assert_eq!(error.code, code);
            assert!(error.message.contains(words) && error.message.len() < 20_000, "{}", error.message);
        }
        assert!(Notifier::new(&[], here).is_none());
    }

    #[tokio::test]
    async fn a_program_that_is_given_up_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let exec = ["sh", "-c", "echo $$ > started; mv started pid; exec sleep 1000"];
        let started = async {
            while !folder.path().join("pid").exists() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            ended = told(&exec, folder.path()) => panic!("{ended:?}"),
            () = started => {}
        }
        let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
        let alive = |pid: &str| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        };
        let gone = async {
            while alive(&pid) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone).await.expect("it is killed");
    }
}
