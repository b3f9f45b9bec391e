//! MCP servers that are programs on an agent's machine. `repl mcp-serve SOCKET PROGRAM…` holds one server for as long as its agent has the
//! machine, and `repl mcp-call` is the process of one step: it asks the holder at that socket and prints what came of it. So what a
//! server remembers lasts from one call to the next, and each call has a process, a time limit and a log of its own.

mod call;
mod pipes;
mod serve;

pub use call::call;
pub use serve::serve;

use super::session::Asked;
use crate::tool::{ToolAnswer, ToolFailure};
use model::Effect;
use model::recovery::ErrorClass;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where `repl mcp-call` finds the socket of its server.
pub const SOCKET_VARIABLE: &str = "REPL_MCP";
/// The subcommands.
pub const CALL: &str = "mcp-call";
pub const SERVE: &str = "mcp-serve";
/// A call that is asked for at the socket: one line.
const LONGEST_REQUEST: u64 = 1 << 20;
/// Output of a call, as JSON. With the words around it, it must fit into what a step may answer (256 KiB).
const LARGEST_OUTPUT: usize = (256 << 10) - 64;

/// What `repl mcp-call` reads as its standard input, and passes on to the holder of the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    #[serde(flatten)]
    pub asked: Asked,
    /// The step's.
    pub key: String,
    pub timeout_ms: i64,
}

impl Request {
    /// From the evaluated input of a step.
    pub fn new(input: &Value, key: &str, timeout_ms: i64) -> Result<Request, String> {
        let asked = serde_json::from_value(input.clone()).map_err(|error| error.to_string())?;
        Ok(Request { asked, key: key.to_owned(), timeout_ms })
    }
}

/// What `repl mcp-call` prints: one of these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerAnswer {
    Output(Value),
    Failed { class: ErrorClass, effect: Effect, code: String, message: String },
}

/// What the holder says while it works on a call.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    /// What the server has written to its standard error meanwhile.
    Log(String),
    Answer(ServerAnswer),
}

impl From<Result<ToolAnswer, ToolFailure>> for ServerAnswer {
    fn from(result: Result<ToolAnswer, ToolFailure>) -> ServerAnswer {
        match result {
            Ok(answer) => {
                let bytes = answer.output.to_string().len();
                if bytes <= LARGEST_OUTPUT {
                    return ServerAnswer::Output(answer.output);
                }
                let message = format!("its output has {bytes} bytes: {LARGEST_OUTPUT} are allowed");
                ToolFailure::new(ErrorClass::Permanent, Effect::Done, "output_too_large", message).into()
            }
            Err(failed) => failed.into(),
        }
    }
}

impl From<ToolFailure> for ServerAnswer {
    fn from(failed: ToolFailure) -> ServerAnswer {
        let model::recovery::StepFailure { class, effect, error, .. } = failed.failure;
        ServerAnswer::Failed { class, effect, code: error.code, message: error.message }
    }
}
