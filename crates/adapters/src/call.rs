//! Execution adapters of calls: one process per invocation, a JSON request on its stdin, one JSON answer on its stdout. Decides which
//! program may be executed and bounds it in time and bytes; what an answer means is the protocol's (`calls::adapter`).

pub mod check;
pub mod exchange;
pub mod handover;
pub mod local;
mod process;
mod program;

use calls::adapter::{
    AdapterAnswer, Closing, Ended, MAX_BYTES, NoAnswer, Operation, Request, TIMEOUT_MS, read, read_closing,
};
use calls::function::Function;
use model::{Effect, Trouble, TroubleKind};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Tells an adapter where the program `repl` is, which reads and writes objects for it.
pub const PROGRAM_VARIABLE: &str = "REPL";
/// What the kernel puts behind the path of a running program whose file was replaced or removed.
const DELETED: &str = " (deleted)";

/// Which adapters may be executed here, and where their programs are.
#[derive(Debug, Clone)]
pub struct Adapters {
    /// Names, or beginnings of names that end in `*`: the setting `[calls] adapters`.
    pub allowed: Vec<String>,
    /// The folders in which programs are looked for, as in `$PATH`. Only absolute ones count.
    pub path: OsString,
    /// Adapters that are this program under another name. They need not be on the path.
    pub own: Option<Own>,
    /// After this the adapter's process group is killed.
    pub within: Duration,
}

/// Adapters that are built in: `program` is started with the adapter's name as its `argv[0]`.
#[derive(Debug, Clone)]
pub struct Own {
    pub program: PathBuf,
    /// Where programs outside of this process find it: the value of [`PROGRAM_VARIABLE`].
    pub path: PathBuf,
    pub names: &'static [&'static str],
    /// Variables that these adapters get, and no others do.
    pub variables: Vec<(&'static str, String)>,
}

impl Own {
    /// The program that runs here. It is started from `/proc/self/exe`, which is this program also after an upgrade has replaced its file.
    pub fn running(names: &'static [&'static str], variables: Vec<(&'static str, String)>) -> io::Result<Own> {
        let path = installed(std::env::current_exe()?);
        Ok(Own { program: "/proc/self/exe".into(), path, names, variables })
    }
}

/// The path at which a running program was installed. After an upgrade the new program is there.
fn installed(running: PathBuf) -> PathBuf {
    match running.to_str().and_then(|path| path.strip_suffix(DELETED)) {
        Some(path) => path.into(),
        None => running,
    }
}

/// An adapter that was not started, or that did not answer as the protocol says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{trouble}")]
pub struct Unanswered {
    /// Stable word for programs: `timed_out`, `not_json`, `not_allowed`, …
    pub code: &'static str,
    /// `retry` is false only if the request itself cannot be sent.
    pub trouble: Trouble,
}

impl From<Unanswered> for Trouble {
    fn from(unanswered: Unanswered) -> Trouble {
        unanswered.trouble
    }
}

impl Adapters {
    /// Those that the settings list, on this process's `$PATH`.
    pub fn new(allowed: Vec<String>) -> Adapters {
        Adapters {
            allowed,
            path: std::env::var_os("PATH").unwrap_or_default(),
            own: None,
            within: Duration::from_millis(TIMEOUT_MS as u64),
        }
    }

    /// `invoke`: begins the execution, or finds it, and says how it is. `variables` are added to the few that an adapter gets.
    pub async fn invoke(&self, request: &Request, variables: &[(&str, String)]) -> Result<AdapterAnswer, Unanswered> {
        debug_assert_eq!(request.operation, Operation::Invoke);
        let ended = self.ask(request, variables).await?;
        read(&ended).map_err(unanswered)
    }

    /// `cancel` and `cleanup`.
    pub async fn close(&self, request: &Request, variables: &[(&str, String)]) -> Result<Closing, Unanswered> {
        debug_assert_ne!(request.operation, Operation::Invoke);
        let ended = self.ask(request, variables).await?;
        read_closing(&ended).map_err(unanswered)
    }

    async fn ask(&self, request: &Request, variables: &[(&str, String)]) -> Result<Ended, Unanswered> {
        let function = Function::parse(&request.function).map_err(|bad| refused("not_a_function", bad.to_string()))?;
        function.permitted(&self.allowed).map_err(|bad| refused("not_allowed", bad.to_string()))?;
        let document = request.document();
        if document.len() > MAX_BYTES {
            let what =
                format!("the request has {} bytes, at most {MAX_BYTES} are sent: use fewer inputs", document.len());
            return Err(refused("request_too_large", what));
        }
        self.send(function.adapter(), &document, variables).await
    }

    async fn send(&self, adapter: &str, document: &[u8], variables: &[(&str, String)]) -> Result<Ended, Unanswered> {
        let program = self.program(adapter)?;
        let mut variables = variables.to_vec();
        if let Some(own) = &self.own {
            variables.push((PROGRAM_VARIABLE, own.path.display().to_string()));
            let is_own = own.names.contains(&adapter);
            variables.extend(own.variables.iter().filter(|_| is_own).cloned());
        }
        process::run(&program, &self.path, &variables, document, self.within).await.map_err(|error| {
            let message = format!("`{}` cannot be started: {error}", program.file.display());
            unanswered(NoAnswer { code: "not_started", message })
        })
    }

    fn program(&self, adapter: &str) -> Result<program::Program, Unanswered> {
        program::find(adapter, &self.path, self.own.as_ref()).ok_or_else(|| {
            let message = format!("there is no program `{adapter}` on $PATH: install the adapter, or correct its name");
            unanswered(NoAnswer { code: "not_started", message })
        })
    }
}

/// No retry helps: the request is wrong.
fn refused(code: &'static str, what: String) -> Unanswered {
    Unanswered { code, trouble: Trouble::new(TroubleKind::InvalidSpec, what) }
}

/// Transient. The adapter may have begun the execution all the same; the next invocation finds it by its key and attempt.
fn unanswered(none: NoAnswer) -> Unanswered {
    let kind = if none.code == "timed_out" { TroubleKind::Timeout } else { TroubleKind::Internal };
    let effect = if none.code == "not_started" { Effect::None } else { Effect::Perhaps };
    Unanswered { code: none.code, trouble: Trouble { retry: true, effect, ..Trouble::new(kind, none.message) } }
}

#[cfg(test)]
mod tests {
    use super::{Own, installed};
    use std::path::Path;

    #[test]
    fn the_running_program_is_started_from_its_process_and_named_by_its_file() {
        let own = Own::running(&["dml-exec-test"], Vec::new()).unwrap();
        assert_eq!(own.program, Path::new("/proc/self/exe"));
        assert_eq!(own.path, std::env::current_exe().unwrap());
        for running in ["/usr/bin/repl (deleted)", "/usr/bin/repl"] {
            assert_eq!(installed(running.into()), Path::new("/usr/bin/repl"));
        }
    }
}
