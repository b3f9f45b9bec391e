//! A run as a call: which of its fields can change the result and are therefore inputs of the call node, what its value is, and which ends
//! are kept. A field that is not here (name, durations, budget, priority, region, cpu, memory, …) never changes the key.

pub use crate::call::Call;
use crate::call::dag_of;
use crate::id::{DagId, Id};
use crate::read::Records;
use crate::record::ExecStatus;
use crate::scalar::MAX_BYTES;
use crate::uri::{Blob, Uri};
use crate::value::{BadValue, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The function of every cached run. Another meaning of the inputs below is another version.
pub const FUNCTION: &str = "dml+exec://dml-exec-repl/run?v=2";

/// All of a run that may change its result. Words, paths and values are bytes: normalising them would change them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedRun {
    pub argv: Vec<Vec<u8>>,
    pub working_dir: Vec<u8>,
    pub files: BTreeMap<Vec<u8>, File>,
    pub env: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The names of secrets; their values are in no key.
    pub secrets: BTreeSet<String>,
    pub machine: Machine,
    pub gpu: Option<String>,
    pub nodes: i64,
    /// The hash of the pool's init script.
    pub init: Option<String>,
    /// The hash of what is read on stdin.
    pub stdin: Option<Id>,
    /// Patterns of artifacts, in the order in which they were given.
    pub artifacts: Vec<String>,
    pub merge: bool,
    /// `cache.salt`: for people who want another key.
    pub salt: String,
    /// The network of its sandbox: outside of one it sees its host's files.
    pub sandbox: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    pub hash: Id,
    /// Delivered as 755 or 644; no other bit of a mode reaches a cached run.
    pub executable: bool,
}

/// Where the run takes place, as far as that may change its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Machine {
    /// By digest. A tag that cannot be resolved is not cached.
    Image {
        digest: String,
    },
    Host {
        provider: String,
        architecture: String,
        os_release: String,
    },
}

/// The inputs of the call node, in this order. Each is a node of its own, so that `repl cache why` can name the one that differs.
pub const LINES: [&str; 14] = [
    "argv",
    "working_dir",
    "files",
    "env",
    "secrets",
    "machine",
    "gpu",
    "nodes",
    "init",
    "stdin",
    "artifacts",
    "merge",
    "salt",
    "sandbox",
];

impl CachedRun {
    /// The value of each line.
    fn values(&self) -> Result<[Value; LINES.len()], BadValue> {
        let bytes = |bytes: &Vec<u8>| Value::bytes(bytes.clone());
        let text = |text: &String| Value::text(text);
        let optional = |word: &Option<String>| word.as_ref().map_or(Ok(Value::Null), |word| Value::text(word));
        let file = |(path, file): (&Vec<u8>, &File)| {
            Ok((bytes(path)?, Value::List(vec![hash(file.hash)?, Value::Bool(file.executable)])))
        };
        let machine = match &self.machine {
            Machine::Image { digest } => [("image", digest)].map(|(key, word)| (key, word.clone())).to_vec(),
            Machine::Host { provider, architecture, os_release } => vec![
                ("provider", provider.clone()),
                ("architecture", architecture.clone()),
                ("os_release", os_release.clone()),
            ],
        };
        let machine = machine.iter().map(|(key, word)| Ok((Value::text(key)?, Value::text(word)?)));
        let variable = |(name, value)| Ok((bytes(name)?, bytes(value)?));
        Ok([
            Value::List(self.argv.iter().map(bytes).collect::<Result<_, _>>()?),
            bytes(&self.working_dir)?,
            Value::map(self.files.iter().map(file).collect::<Result<Vec<_>, BadValue>>()?)?,
            Value::map(self.env.iter().map(variable).collect::<Result<Vec<_>, BadValue>>()?)?,
            Value::set(self.secrets.iter().map(text).collect::<Result<Vec<_>, _>>()?)?,
            Value::map(machine.collect::<Result<Vec<_>, BadValue>>()?)?,
            optional(&self.gpu)?,
            Value::Int(self.nodes),
            optional(&self.init)?,
            self.stdin.map_or(Ok(Value::Null), hash)?,
            Value::List(self.artifacts.iter().map(text).collect::<Result<_, _>>()?),
            Value::Bool(self.merge),
            text(&self.salt)?,
            optional(&self.sandbox)?,
        ])
    }

    /// The call node of this run. Equal runs have the same node, whatever else about them differs.
    pub fn call(&self) -> Result<Call, BadValue> {
        Call::with(Uri::new(FUNCTION)?, &self.values()?)
    }
}

fn hash(id: Id) -> Result<Value, BadValue> {
    Value::bytes(id.0)
}

/// What a finished run is worth to the next one. The order in which its two streams interleaved is not part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunValue {
    pub exit_code: i64,
    pub stdout: Stream,
    pub stderr: Stream,
    pub artifacts: BTreeMap<Vec<u8>, Artifact>,
}

/// What was written to one stream: whole, or as a blob if it is longer than a value may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stream {
    Bytes(Vec<u8>),
    Blob(Blob),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Artifact {
    pub blob: Blob,
    /// Permission bits.
    pub mode: u32,
}

impl Stream {
    /// The form of some contents: the same contents always have the same one.
    pub fn of(contents: Vec<u8>) -> Stream {
        if contents.len() > MAX_BYTES { Stream::Blob(Blob::of(&contents)) } else { Stream::Bytes(contents) }
    }
    fn read(value: &Value) -> Option<Stream> {
        match value {
            Value::Bytes(bytes) => Some(Stream::Bytes(bytes.as_slice().to_vec())),
            Value::Uri(uri) => uri.blob().map(Stream::Blob),
            _ => None,
        }
    }
    fn value(&self) -> Result<Value, BadValue> {
        match self {
            Stream::Bytes(bytes) => Value::bytes(bytes.clone()),
            Stream::Blob(blob) => Ok(Value::Uri(blob.uri())),
        }
    }
}

impl RunValue {
    /// The map `{exit_code, stdout, stderr, artifacts: path → {blob, mode}}`.
    pub fn value(&self) -> Result<Value, BadValue> {
        let artifact = |(path, artifact): (&Vec<u8>, &Artifact)| {
            let fields = [("blob", Value::Uri(artifact.blob.uri())), ("mode", Value::Int(artifact.mode.into()))];
            Ok((Value::bytes(path.clone())?, words(fields)?))
        };
        words([
            ("exit_code", Value::Int(self.exit_code)),
            ("stdout", self.stdout.value()?),
            ("stderr", self.stderr.value()?),
            ("artifacts", Value::map(self.artifacts.iter().map(artifact).collect::<Result<Vec<_>, BadValue>>()?)?),
        ])
    }
}

impl RunValue {
    /// Reads what [`RunValue::value`] made; none if it is another kind of value.
    pub fn read(value: &Value) -> Option<RunValue> {
        let Value::Map(fields) = value else { return None };
        let field = |map: &crate::value::Map, name: &str| map.get(&Value::text(name).ok()?).cloned();
        let artifact = |(path, fields): (&Value, &Value)| match (path, fields) {
            (Value::Bytes(path), Value::Map(fields)) => {
                let Value::Uri(uri) = field(fields, "blob")? else { return None };
                let Value::Int(mode) = field(fields, "mode")? else { return None };
                let artifact = Artifact { blob: uri.blob()?, mode: u32::try_from(mode).ok()? };
                Some((path.as_slice().to_vec(), artifact))
            }
            _ => None,
        };
        let Value::Int(exit_code) = field(fields, "exit_code")? else { return None };
        let Value::Map(artifacts) = field(fields, "artifacts")? else { return None };
        Some(RunValue {
            exit_code,
            stdout: Stream::read(&field(fields, "stdout")?)?,
            stderr: Stream::read(&field(fields, "stderr")?)?,
            artifacts: artifacts.iter().map(artifact).collect::<Option<_>>()?,
        })
    }

    /// Contents that it names.
    pub fn blobs(&self) -> Vec<Blob> {
        let streams = [&self.stdout, &self.stderr].into_iter().filter_map(|stream| match stream {
            Stream::Blob(blob) => Some(*blob),
            Stream::Bytes(_) => None,
        });
        self.artifacts.values().map(|artifact| artifact.blob).chain(streams).collect()
    }

    /// A dag whose root is this value, with the records it needs, children first.
    pub fn dag(&self) -> Result<(DagId, Records), BadValue> {
        dag_of(&self.value()?)
    }
}

/// The value of a call that failed: of a program that ended with an exit code, which is pinned, and of a run that failed or is gone (R116),
/// which is not.
pub fn error_value(kind: &str, message: &str, origin: &str, stack: &[String]) -> Result<Value, BadValue> {
    words([
        ("type", Value::text(kind)?),
        ("message", Value::text(message)?),
        ("origin", Value::text(origin)?),
        ("stack", Value::List(stack.iter().map(|line| Value::text(line)).collect::<Result<_, _>>()?)),
    ])
}

fn words<const N: usize>(fields: [(&str, Value); N]) -> Result<Value, BadValue> {
    Value::map(
        fields.into_iter().map(|(key, value)| Ok((Value::text(key)?, value))).collect::<Result<Vec<_>, BadValue>>()?,
    )
}

/// How a run ended, as far as its cache is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Signalled,
    OutOfMemory,
    TimedOut,
    Cancelled,
    /// A spot machine was taken away, or a machine was lost.
    Interrupted,
}

/// With which status the end of a run is pinned; none if it says nothing about the call: it was stopped from outside, or a part of its
/// value is missing.
pub fn pinned(end: End, logs_are_whole: bool, artifacts_are_whole: bool) -> Option<ExecStatus> {
    match end {
        End::Exited(code) if logs_are_whole && artifacts_are_whole => {
            Some(if code == 0 { ExecStatus::Ok } else { ExecStatus::Error })
        }
        _ => None,
    }
}

/// Whether a pinned exec answers a cached run. `repl call` and `call` steps take errors, too; `run --cache` only with `--cache-errors`.
pub fn is_hit(status: ExecStatus, takes_errors: bool) -> bool {
    status == ExecStatus::Ok || takes_errors
}
