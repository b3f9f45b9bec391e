//! `repl step poll`: does the `external` steps of plans. Takes one step after the other, runs a command with the step's input,
//! and reports what it answered.

use super::process::{Process, Ran};
use super::{ANSWER_WITHIN, Asking, Backoff, StepArgs, WAIT_MS, failed_step, is_passing};
use crate::complaint::{Complaint, Done};
use crate::control_plane::{API, ControlPlane, new_key};
use crate::say::one_line;
use crate::settings::Settings;
use crate::show;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use wire::api::{BeatStep, CompleteStep, FailStep, PollSteps, PolledStep, StepAnswer, StepBeat};
use wire::client::{ClientError, Method};

/// A step is given up so soon after this program has died.
const LEASE_MS: i64 = 30_000;
/// Bytes of an output, as the control plane takes them.
const MAX_OUTPUT: usize = 8 << 20;
/// `EX_TEMPFAIL` of sysexits.h: the command could not do it now, and has done nothing.
const TEMPORARY: i32 = 75;

pub(super) async fn poll(settings: &Settings, args: &StepArgs) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let tools: Vec<String> = args.tools.iter().map(|tool| format!("`{}`", one_line(tool))).collect();
    eprintln!("repl: waits for steps of {}", tools.join(", "));
    let ask =
        PollSteps { tools: args.tools.clone(), wait_ms: Some(WAIT_MS), lease_ms: Some(args.lease.unwrap_or(LEASE_MS)) };
    loop {
        let asked = Instant::now();
        let Some(step) = next(&plane, &ask).await? else { continue };
        let asking = Asking { client: plane.client(), plane: Some(&plane), run: step.run.clone() };
        if !is_still_ours(&asking, &step, asked).await? {
            eprintln!("repl: {} {}: given up before it was begun", step.id, one_line(&step.path));
            continue;
        }
        let code = work(&asking, &step, args).await?;
        if args.once {
            return Ok(code);
        }
    }
}

/// The next step, or none for a while. Asked again under the same key when an answer got lost: the step was taken for this program.
async fn next(plane: &ControlPlane, body: &PollSteps) -> Done<Option<PolledStep>> {
    let (path, key) = (format!("{API}/steps/poll"), new_key()?);
    let mut backoff = Backoff::new();
    loop {
        let request = plane.client().request(Method::POST, &path).header("idempotency-key", &key).json(body);
        let answered = match request.within(ANSWER_WITHIN).send().await {
            Ok(response) if response.status() == 204 => return Ok(None),
            Ok(response) => response.json().await.map(Some),
            Err(error) => Err(error),
        };
        match answered {
            Err(error) if is_passing(&error) => {
                backoff.wait(&error).await;
                plane.again().await.ok(); // an embedded one may have come back at another place
            }
            answered => return answered.map_err(Complaint::from),
        }
    }
}

/// Whether the lease surely goes on: the step was taken after it was `asked` for, or the lease was renewed just now. A program that stood
/// still, or got its answer late, must not do what another one does meanwhile.
async fn is_still_ours(asking: &Asking<'_>, step: &PolledStep, mut asked: Instant) -> Done<bool> {
    let lease = Duration::from_millis(step.lease_ms.max(0) as u64);
    if asked.elapsed() > lease / 2 {
        asked = Instant::now();
        let body = BeatStep { fence: step.fence, lease_ms: None };
        let beat: StepBeat = asking.post(&format!("/{}/heartbeat", step.id), &body).await?;
        if beat.state == "cancel" {
            return Ok(false);
        }
    }
    Ok(asked.elapsed() < lease)
}

/// Runs the command for a step, and says how it ended. The code is the command's.
async fn work(asking: &Asking<'_>, step: &PolledStep, args: &StepArgs) -> Done {
    let process = Process {
        command: &args.command,
        env: vec![
            ("REPL_STEP_KEY", step.key.clone()),
            ("REPL_STEP_TOOL", step.tool.clone()),
            ("REPL_STEP_ID", step.id.clone()),
            ("REPL_STEP_RUN", step.run.clone()),
        ],
        stdin: Some(format!("{}\n", step.input).into_bytes()),
        kept: MAX_OUTPUT,
        echo: false,
    };
    let ran = match process.run(asking, (&step.id, step.fence), step.lease_ms).await {
        Ok(ran) => ran,
        Err(error) => {
            let message = format!("{}: {error}", args.command[0]);
            let (class, effect) = (Some("transient".into()), Some("none".into()));
            let failed = FailStep { class, effect, ..failed_step(step.fence, message.clone()) };
            asking.post::<_, StepAnswer>(&format!("/{}/fail", step.id), &failed).await?;
            return Err(Complaint { code: 127, ..Complaint::refused(message) });
        }
    };
    let told = match end(&ran, step.fence) {
        End::Done(body) => asking.post::<_, StepAnswer>(&format!("/{}/complete", step.id), &body).await,
        End::Failed(body) => asking.post(&format!("/{}/fail", step.id), &body).await,
    };
    show_end(step, &ran, told, args.json)?;
    Ok(u8::try_from(ran.code).unwrap_or(1))
}

enum End {
    Done(CompleteStep),
    Failed(FailStep),
}

fn end(ran: &Ran, fence: i64) -> End {
    let failed = |code: &str, message: String, class: Option<&str>, effect: &str| {
        let (code, class, effect) = (Some(code.into()), class.map(Into::into), Some(effect.into()));
        End::Failed(FailStep { code, class, effect, ..failed_step(fence, message) })
    };
    let message = format!("exit code {}", ran.code);
    match ran.code {
        0 if ran.cut => failed("output_too_large", "its output has more than 8 MiB".into(), None, "done"),
        0 => End::Done(CompleteStep { fence, output: output(&ran.stdout), cost: None, next: None, finish: None }),
        TEMPORARY => failed("exit_code", message, Some("transient"), "none"),
        _ if ran.by_signal => failed("signal", format!("signal {}", ran.code - 128), None, "perhaps"),
        _ => failed("exit_code", message, None, "done"),
    }
}

/// JSON if it is, else the text; nothing is null.
fn output(stdout: &[u8]) -> Value {
    let text = String::from_utf8_lossy(stdout);
    match text.trim() {
        "" => Value::Null,
        text => serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned())),
    }
}

fn show_end(step: &PolledStep, ran: &Ran, told: Result<StepAnswer, ClientError>, json: bool) -> Done<()> {
    let state = match &told {
        Ok(answer) => answer.state.clone(),
        Err(ClientError::Problem(_)) => "late".to_owned(),
        Err(error) => return Err(Complaint::refused(error.to_string())),
    };
    if json {
        let line = json!({
            "run": step.run, "step": step.id, "path": step.path, "tool": step.tool, "try": step.fence, "key": step.key,
            "state": state, "exit_code": ran.code,
        });
        return show::json_line(&line).map(drop);
    }
    match told {
        Err(error) => eprintln!("repl: {} {}: its end came too late: {error}", step.id, one_line(&step.path)),
        Ok(_) => eprintln!("repl: {} {}: {state}", step.id, one_line(&step.path)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(code: i32, by_signal: bool, stdout: &str, cut: bool) -> Ran {
        Ran { code, by_signal, stdout: stdout.into(), cut, cancelled: false }
    }

    #[test]
    fn how_a_command_ended_says_what_became_of_its_step() {
        for (stdout, output) in
            [("{\"id\": 7}\n", json!({ "id": 7 })), ("", Value::Null), (" plain text\n", json!("plain text"))]
        {
            let End::Done(body) = end(&ran(0, false, stdout, false), 3) else { panic!("{stdout} failed") };
            assert_eq!((body.fence, body.output), (3, output));
        }
        for (ran, code, class, effect) in [
            (ran(0, false, "…", true), "output_too_large", None, "done"),
            (ran(1, false, "", false), "exit_code", None, "done"),
            (ran(75, false, "", false), "exit_code", Some("transient"), "none"),
            (ran(137, true, "", false), "signal", None, "perhaps"),
        ] {
            let End::Failed(body) = end(&ran, 3) else { panic!("{code} was done") };
            assert_eq!((body.code.as_deref(), body.class.as_deref()), (Some(code), class));
            assert_eq!(body.effect.as_deref(), Some(effect));
        }
    }
}
