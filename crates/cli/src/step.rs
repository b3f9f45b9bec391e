//! `repl step`: a durable step in a script. The command runs unless a step of this name has finished in this run with the same
//! arguments (or the same key); then its recorded output is printed again. In a job, requests go over the job's own socket.

mod files;
mod poll;
mod process;

use crate::complaint::{Complaint, Done};
use crate::control_plane::{API, ControlPlane, new_key};
use crate::settings::Settings;
use crate::{lookup, quantity};
use files::{KeptFile, gather, restore};
use process::{Process, Ran, pass_on};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::Read as _;
use std::time::Duration;
use wire::Base64;
use wire::api::{BeginStep, CompleteStep, FailStep, StepAnswer};
use wire::client::{Client, ClientError, Method};

/// Bytes of standard output that are remembered; of a longer one, its end.
const KEPT_OUTPUT: usize = 96 << 10;
const MAX_STDIN: u64 = 64 << 20;
/// One request waits so long for a step that is held, or for a person; then it is asked again.
const WAIT_MS: i64 = 25_000;
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Do something once in a run, however often its script is begun anew
#[derive(Debug, clap::Args)]
#[command(after_help = "In a command of a run: COMMAND is run unless a step of this NAME has finished in
this run with the same words (or the same --key); then its output is printed
again. A command that fails passes its code on and is not remembered. One that
was interrupted is repeated, unless --once: then a person is asked.

Examples:
  repl step download -- curl -sO https://data.example/set.tar
  for n in 1 2 3; do repl step epoch -- python train.py --epoch $n; done
  repl step pay --once --key order-17 -- ./pay 17
  loss=$(repl step get epoch)

`repl step poll --tool TOOL -- COMMAND`, anywhere: takes steps `external: TOOL`
of plans, one after the other, until it is interrupted (--once: one step).
COMMAND reads the step's input as JSON on its standard input; REPL_STEP_KEY is
the same in every try. What it writes, as JSON, is the step's output. Exit code
75: nothing was done, try again later. Any other failure ends the step; killed
by a signal, nobody knows what it did.

Examples:
  repl step poll --tool crm -- ./update-crm
  repl step poll --tool crm --tool mail --once --json -- ./handle")]
pub struct StepArgs {
    /// Its name; or `get NAME`: print what a finished step had written; or `poll`
    #[arg(value_name = "NAME", required = true, num_args = 1..=2)]
    words: Vec<String>,
    /// Tells steps of one name apart, instead of the words of the command
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// The command reads this standard input, which then tells steps apart, too
    #[arg(long)]
    stdin: bool,
    /// Never repeat it if it was interrupted: a person says what became of it; of `poll`: end after one step
    #[arg(long)]
    once: bool,
    /// Of `poll`: take steps of plans that name this tool (may be given several times)
    #[arg(long = "tool", value_name = "TOOL", conflicts_with_all = ["key", "stdin", "files", "run"])]
    tools: Vec<String>,
    /// Of `poll`: a step is given up when this program is silent for so long; 30s unless given
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration, requires = "tools")]
    lease: Option<i64>,
    /// Of `poll`: one line of JSON on stdout for each step that has ended
    #[arg(long, requires = "tools")]
    json: bool,
    /// Keep these files too, and lay them down again where they are missing
    #[arg(long = "file", value_name = "GLOB")]
    files: Vec<String>,
    /// Outside of a job: the run of `type: external` that it is a step of
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// What to run
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// What a step of ours remembers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Remembered {
    #[serde(default)]
    exit_code: i32,
    /// As text where it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stdout: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<Base64>,
    /// The beginning was longer than what is remembered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    files: Vec<KeptFile>,
}

pub async fn step(settings: &Settings, args: StepArgs) -> Done {
    match (args.words.as_slice(), args.command.is_empty()) {
        ([poll], false) if poll == "poll" && !args.tools.is_empty() => poll::poll(settings, &args).await,
        ([poll], true) if poll == "poll" => {
            let fix = "repl step poll --tool TOOL -- COMMAND…";
            Err(Complaint::usage("what is to be run for the steps that are taken?").fix(fix))
        }
        _ if !args.tools.is_empty() => {
            Err(Complaint::usage("--tool is for `poll`").fix("repl step poll --tool TOOL -- COMMAND…"))
        }
        ([get, name], true) if get == "get" => {
            let asking = Asking::open(settings, args.run.as_deref()).await?;
            print_recorded(&asking, name, args.key.as_deref()).await
        }
        ([name], false) => {
            let asking = Asking::open(settings, args.run.as_deref()).await?;
            once(&asking, name.clone(), &args).await
        }
        ([name], true) => Err(Complaint::usage("what is to be run?").fix(format!("repl step {name} -- COMMAND…"))),
        _ => {
            let words = args.words.join(" ");
            Err(Complaint::usage(format!("`{words}`: a step has one name")).fix("repl step NAME -- COMMAND…"))
        }
    }
}

/// Where to ask, and about which run.
struct Asking<'p> {
    client: Client,
    /// Found again, and started again, when it does not answer.
    plane: Option<&'p ControlPlane>,
    run: String,
}

impl Asking<'_> {
    async fn open(settings: &Settings, run: Option<&str>) -> Done<Asking<'static>> {
        let of = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        match (of("REPL_STEPS"), of("REPL_STEP_TOKEN"), of("REPL_RUN")) {
            (Some(socket), Some(token), Some(run_here)) if run.is_none() => {
                let client = Client::new(&format!("unix:{socket}"), Some(&token))?;
                Ok(Asking { client, plane: None, run: run_here })
            }
            (_, _, run_here) => {
                let said = run.map(str::to_owned).or(run_here).ok_or_else(|| {
                    Complaint::usage("of which run? This is no job of one")
                        .fix("use it in a command of a run, or name a run of `type: external` with --run RUN")
                })?;
                let plane = ControlPlane::reach(settings).await?;
                let run = lookup::run(&plane, &said).await?;
                Ok(Asking { client: plane.client(), plane: None, run })
            }
        }
    }

    /// Asks until it is answered: a script must not fail because a control plane or a runner is being started again.
    async fn post<B: Serialize, T: serde::de::DeserializeOwned>(&self, path: &str, body: &B) -> Result<T, ClientError> {
        let path = format!("{API}/runs/{}/steps{path}", self.run);
        let key = new_key().map_err(|complaint| ClientError::Protocol(complaint.to_string()))?;
        let mut backoff = Backoff::new();
        loop {
            let client = self.plane.map_or_else(|| self.client.clone(), ControlPlane::client);
            let request = client.request(Method::POST, &path).header("idempotency-key", &key).json(body);
            let answered = match request.within(ANSWER_WITHIN).send().await {
                Ok(response) => response.json().await,
                Err(error) => Err(error),
            };
            match answered {
                Err(error) if is_passing(&error) => {
                    backoff.wait(&error).await;
                    if let Some(plane) = self.plane {
                        plane.again().await.ok();
                    }
                }
                answered => return answered,
            }
        }
    }
}

/// Between asking and asking again: longer each time, and said once where it takes long.
struct Backoff {
    pause: Duration,
    told: bool,
}

impl Backoff {
    fn new() -> Backoff {
        Backoff { pause: FIRST_PAUSE, told: false }
    }

    async fn wait(&mut self, error: &ClientError) {
        if self.pause >= LONGEST_PAUSE && !std::mem::replace(&mut self.told, true) {
            eprintln!("repl: {error}; trying again");
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

fn is_passing(error: &ClientError) -> bool {
    match error {
        ClientError::Unreachable(_) => true,
        ClientError::Problem(problem) => {
            problem.status >= 500 || matches!(problem.status, 408 | 425 | 429) || problem.code == "idempotency_key_busy"
        }
        _ => false,
    }
}

async fn once(asking: &Asking<'_>, name: String, args: &StepArgs) -> Done {
    let stdin = if args.stdin { Some(read_stdin()?) } else { None };
    let input = json!({
        "argv": args.command,
        "stdin": stdin.as_ref().map(|bytes| blake3::hash(bytes).to_hex().to_string()),
    });
    let body = BeginStep {
        name: name.clone(),
        key: args.key.clone(),
        input,
        idempotent: !args.once,
        wait_ms: Some(WAIT_MS),
        ..BeginStep::default()
    };
    let answer = begin(asking, &body).await?;
    match answer.state.as_str() {
        "go" => act(asking, &answer, args, stdin).await,
        "completed" => replay(&answer),
        "skipped" => {
            eprintln!("repl: step {name} was skipped by a person");
            Ok(0)
        }
        _ => {
            let why = answer.error.map_or_else(|| answer.state.clone(), |error| error.message);
            Err(Complaint::refused(format!("step {name} is not done: {why}")))
        }
    }
}

/// Waits as long as another process does the step, a person is asked, or the run is paused.
async fn begin(asking: &Asking<'_>, body: &BeginStep) -> Done<StepAnswer> {
    let mut told = String::new();
    loop {
        match asking.post("", body).await {
            Ok(answer) => return Ok(answer),
            Err(ClientError::Problem(problem)) if problem.code == "held" => {
                if told != problem.detail {
                    eprintln!("repl: step {} waits: {}", body.name, problem.detail);
                    told = problem.detail;
                }
                tokio::time::sleep(FIRST_PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn read_stdin() -> Done<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(MAX_STDIN + 1).read_to_end(&mut bytes);
    read.map_err(|error| Complaint::usage(format!("standard input cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_STDIN {
        return Err(
            Complaint::usage("standard input has more than 64 MiB").fix("put it into a file, and name the file")
        );
    }
    Ok(bytes)
}

async fn act(asking: &Asking<'_>, go: &StepAnswer, args: &StepArgs, stdin: Option<Vec<u8>>) -> Done {
    let (id, fence) = (go.id.clone().unwrap_or_default(), go.fence.unwrap_or(0));
    let process = Process {
        command: &args.command,
        env: vec![("REPL_STEP_KEY", go.key.clone().unwrap_or_default())],
        stdin,
        kept: KEPT_OUTPUT,
        echo: true,
    };
    let ran = match process.run(asking, (&id, fence), go.lease_ms.unwrap_or(60_000)).await {
        Ok(ran) => ran,
        Err(error) => {
            let message = format!("{}: {error}", args.command[0]);
            let failed = FailStep { effect: Some("none".into()), ..failed_step(fence, message.clone()) };
            asking.post::<_, StepAnswer>(&format!("/{id}/fail"), &failed).await?;
            return Err(Complaint { code: 127, ..Complaint::refused(message) });
        }
    };
    if ran.code == 0 {
        let output = remembered(&ran, &gather(&args.files)?);
        let body = CompleteStep { fence, output, cost: None, next: None, finish: None };
        return match asking.post::<_, StepAnswer>(&format!("/{id}/complete"), &body).await {
            Ok(_) => Ok(0),
            Err(error) => Err(Complaint::refused(format!("it was done, and cannot be remembered: {error}"))),
        };
    }
    let body = failure_of(&ran, fence);
    match asking.post::<_, StepAnswer>(&format!("/{id}/fail"), &body).await {
        Err(error) if !ran.cancelled => eprintln!("repl: its failure could not be told: {error}"),
        _ => {}
    }
    Ok(u8::try_from(ran.code).unwrap_or(1))
}

/// A process that a signal has ended may have had its effect or not; one that exits by itself knows what it did.
fn failure_of(ran: &Ran, fence: i64) -> FailStep {
    if ran.by_signal {
        let failed = failed_step(fence, format!("signal {}", ran.code - 128));
        return FailStep { code: Some("signal".into()), effect: Some("perhaps".into()), ..failed };
    }
    FailStep { code: Some("exit_code".into()), ..failed_step(fence, format!("exit code {}", ran.code)) }
}

fn failed_step(fence: i64, message: String) -> FailStep {
    FailStep { fence, message, code: None, class: None, effect: None }
}

fn remembered(ran: &Ran, files: &[KeptFile]) -> Value {
    if ran.cut {
        eprintln!("repl: of its output the last {} KiB are remembered", KEPT_OUTPUT >> 10);
    }
    let text = String::from_utf8(ran.stdout.clone()).ok().filter(|text| !text.contains('\0'));
    let kept = Remembered {
        exit_code: 0,
        stdout_base64: text.is_none().then(|| Base64(ran.stdout.clone())),
        stdout: text,
        cut: ran.cut,
        files: files.to_vec(),
    };
    serde_json::to_value(kept).expect("it is plain data")
}

fn replay(answer: &StepAnswer) -> Done {
    let output = answer.output.clone().unwrap_or_default();
    // Steps that another program made may have answered anything.
    match serde_json::from_value::<Remembered>(output.clone()) {
        Ok(kept) if output.get("exit_code").is_some() => {
            restore(&kept.files)?;
            if kept.cut {
                eprintln!("repl: of its output the last {} KiB were remembered", KEPT_OUTPUT >> 10);
            }
            match (kept.stdout, kept.stdout_base64) {
                (Some(text), _) => pass_on(text.as_bytes()),
                (None, Some(bytes)) => pass_on(&bytes.0),
                (None, None) => {}
            }
        }
        _ => println!("{output}"),
    }
    Ok(0)
}

async fn print_recorded(asking: &Asking<'_>, name: &str, key: Option<&str>) -> Done {
    let key = key.map_or_else(String::new, |key| format!("&key={}", wire::client::encode(key)));
    let path = format!("{API}/runs/{}/steps/recorded?name={}{key}", asking.run, wire::client::encode(name));
    let mut pause = FIRST_PAUSE;
    loop {
        match asking.client.get::<StepAnswer>(&path).await {
            Ok(answer) => return replay(&answer),
            Err(error) if is_passing(&error) || error.problem().is_some_and(|problem| problem.code == "held") => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_signal_has_ended_may_have_had_its_effect() {
        let ran = |code, by_signal| Ran { code, by_signal, stdout: Vec::new(), cut: false, cancelled: false };
        let killed = failure_of(&ran(137, true), 2);
        assert_eq!((killed.code.as_deref(), killed.effect.as_deref()), (Some("signal"), Some("perhaps")));
        assert_eq!((killed.fence, killed.message.as_str()), (2, "signal 9"));
        let left = failure_of(&ran(137, false), 2);
        assert_eq!((left.code.as_deref(), left.effect.as_deref()), (Some("exit_code"), None));
    }
}
