//! The execution adapter `dml-exec-repl` as a program, for Executors elsewhere: a call is a run of this control plane. It is submitted under
//! the execution's key and attempt, so that an invocation without a token finds it; the token is the id of the execution here. Our own
//! Executor does the same without a process.

use crate::complaint::{Complaint, Done, REFUSED, USAGE};
use crate::control_plane::ControlPlane;
use crate::settings::{Flags, Settings};
use calls::adapter::{AdapterAnswer, MAX_BYTES, Operation, Request, VERSION};
use calls::json;
use calls::record::ExecStatus;
use server::adapter::exchange::{Exchange, ExchangeError};
use std::io::Read as _;
use wire::api::{AskCall, CallView};

pub const NAME: &str = "dml-exec-repl";
/// Where the control plane is, and who asks: given to this program alone, never to other adapters.
pub const VARIABLES: [&str; 8] = [
    "REPL_CONFIG",
    "REPL_HOME",
    "REPL_URL",
    "REPL_TOKEN",
    "REPL_CA_CERT",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
];
const ASK_AGAIN_MS: i64 = 200;

/// One request on stdin, one answer on stdout. A complaint is a transient failure.
pub fn main() -> Done {
    let trouble = |what: String| Complaint { code: USAGE, text: what, fix: None };
    let mut text = String::new();
    let read = std::io::stdin().take(MAX_BYTES as u64 + 1).read_to_string(&mut text);
    read.map_err(|error| trouble(format!("cannot read the request: {error}")))?;
    let request: Request = serde_json::from_str(&text).map_err(|error| trouble(format!("no request: {error}")))?;
    if request.version != VERSION {
        return Err(trouble(format!("version {} is not spoken here, only {VERSION}", request.version)));
    }
    let settings = Settings::read(&Flags::default())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| trouble(format!("cannot start: {error}")))?;
    println!("{}", runtime.block_on(answer(&settings, &request))?);
    Ok(0)
}

async fn answer(settings: &Settings, request: &Request) -> Done<String> {
    let done = serde_json::json!({ "version": VERSION, "answer": "done" }).to_string();
    match request.operation {
        Operation::Invoke => invoke(settings, request).await.map(|answer| answer.document()),
        // A run leaves nothing outside of its control plane.
        Operation::Cleanup => Ok(done),
        Operation::Cancel => {
            let plane = ControlPlane::reach(settings).await?;
            if let Ok(id) = begun(&plane, request).await? {
                let _: CallView = plane.post(&format!("/calls/{id}/cancel"), &serde_json::json!({})).await?;
            }
            Ok(done)
        }
    }
}

async fn invoke(settings: &Settings, request: &Request) -> Done<AdapterAnswer> {
    let plane = ControlPlane::reach(settings).await?;
    let id = match begun(&plane, request).await? {
        Ok(id) => id,
        Err(refused) => return Ok(refused),
    };
    let seen: CallView = plane.get(&format!("/calls/{id}")).await?;
    if !seen.ended {
        return Ok(AdapterAnswer::Pending { token: id, retry_after_ms: Some(ASK_AGAIN_MS) });
    }
    // A failure of the run says nothing about the call. As `done` with an error the Executor there would pin it.
    if let Some(error) = seen.error {
        return Ok(AdapterAnswer::Failed { code: error.code, message: error.message });
    }
    let Some(result) = seen.result else {
        return Ok(AdapterAnswer::Failed { code: "result_gone".into(), message: "its result was deleted".into() });
    };
    let value = json::parse(&result.value.unwrap_or_default().to_string());
    let value = value.map_err(|bad| Complaint { code: USAGE, text: bad.to_string(), fix: None })?;
    let status = if result.status == "ok" { ExecStatus::Ok } else { ExecStatus::Error };
    Exchange::open(request).and_then(|exchange| exchange.publish(status, &value)).map_err(exchange)
}

fn exchange(error: ExchangeError) -> Complaint {
    Complaint { code: USAGE, text: error.to_string(), fix: None }
}

/// The execution here: the one that the token names, or that was begun under this key and attempt, or a new one. Or why there is none.
async fn begun(plane: &ControlPlane, request: &Request) -> Done<Result<String, AdapterAnswer>> {
    if let Some(token) = &request.token {
        return Ok(Ok(token.clone()));
    }
    let inputs = Exchange::open(request).and_then(|mut exchange| exchange.inputs()).map_err(exchange)?;
    let inputs = inputs.iter().map(json::to_json).collect();
    // The Executor that asks has looked for a kept result: each attempt is an execution of its own.
    let asked = AskCall { function: request.function.clone(), inputs, cache: Some(false) };
    let key = format!("{NAME}-{}-{}", request.key, request.attempt);
    match plane.post_keyed::<_, CallView>("/calls", &asked, &key).await {
        Ok(seen) => Ok(Ok(seen.id.unwrap_or_default())),
        Err(complaint) if complaint.code == REFUSED => {
            Ok(Err(AdapterAnswer::Failed { code: "refused".to_owned(), message: complaint.text }))
        }
        Err(complaint) => Err(complaint),
    }
}
