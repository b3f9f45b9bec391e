//! A provider that is a program of the owner's: one process a call, the verb as its last argument, JSON by its standard input, one line of
//! JSON as the answer. Knows nothing of what the program does; what it cannot understand may have happened.

use crate::provider::{
    Capabilities, Handle, ListAsk, Listed, ListedPage, Order, Provider, ProviderFuture, Reach, Seen, is_workdir,
};
use model::orphan::ResourceType;
use model::spec::Resources;
use model::{Credits, Effect, Timestamp, Trouble, TroubleKind, names};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};

/// A longer answer is none: a page of a list fits several times.
const ANSWER_BYTES: u64 = 1 << 20;
/// Of what it says on stderr, so much is repeated in an error.
const SAID_BYTES: u64 = 2 << 10;
/// A program may leave children behind that hold its stderr open.
const SAID_WITHIN: Duration = Duration::from_millis(200);
/// How long a lister may take for a page.
const LISTED_WITHIN: Duration = Duration::from_secs(50);
/// The region of what a lister lists.
pub const EVERYWHERE: &str = "everywhere";
const PASSED_ON: [&str; 7] = ["PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "SSH_AUTH_SOCK"];

#[derive(Debug, Clone)]
pub struct ExecSettings {
    pub name: String,
    /// The program and its first arguments; there is no shell.
    pub exec: Vec<String>,
    /// Where it is started.
    pub folder: PathBuf,
    /// Its variables beside those that every program gets.
    pub env: BTreeMap<String, String>,
    pub timeout: Duration,
    pub capabilities: Capabilities,
    pub reach: Reach,
    pub price_per_hour: Credits,
    pub spot_price: Credits,
}

pub struct ExecProvider {
    settings: ExecSettings,
}

/// What went wrong, as the program says it.
#[derive(Debug, Deserialize)]
struct Complaint {
    kind: String,
    #[serde(default)]
    what: Option<String>,
    #[serde(default)]
    effect: Option<String>,
    #[serde(default)]
    retry_after_ms: Option<i64>,
}

#[derive(Deserialize)]
struct Made {
    handle: String,
}

#[derive(Deserialize)]
struct Found {
    handle: Option<String>,
}

#[derive(Deserialize)]
struct Looked {
    seen: String,
    since: Option<i64>,
    why: Option<String>,
}

#[derive(Deserialize)]
struct Page {
    listed: Vec<Listed>,
    #[serde(default)]
    next: Option<String>,
    #[serde(default)]
    incomplete: Vec<String>,
}

#[derive(Deserialize)]
struct Done {}

impl ExecProvider {
    pub fn new(settings: ExecSettings) -> ExecProvider {
        ExecProvider { settings }
    }

    /// A program that is only asked for what exists, and to delete one of it: it has no machines.
    pub fn lister(name: &str, exec: Vec<String>, env: BTreeMap<String, String>, folder: PathBuf) -> ExecProvider {
        ExecProvider::new(ExecSettings {
            name: name.to_owned(),
            exec,
            folder,
            env,
            timeout: LISTED_WITHIN,
            capabilities: Capabilities {
                regions: vec![EVERYWHERE.to_owned()],
                max_instances: 0,
                ..Capabilities::default()
            },
            reach: Reach::Host,
            price_per_hour: Credits::ZERO,
            spot_price: Credits::ZERO,
        })
    }

    async fn call<T: DeserializeOwned>(&self, verb: &'static str, ask: Value) -> Result<T, Trouble> {
        let mut child = self.start(verb)?;
        let told = tokio::time::timeout(self.settings.timeout, talk(&mut child, ask.to_string())).await;
        let (line, said) = match told {
            Ok(told) => told,
            Err(_) => {
                child.start_kill().ok();
                let ms = self.settings.timeout.as_millis();
                let what = format!("{}: no answer to `{verb}` within {ms} ms", self.settings.name);
                return Err(Trouble::new(TroubleKind::Timeout, what).perhaps());
            }
        };
        let answer: Option<Value> = serde_json::from_slice(&line).ok();
        if let Some(complaint) = answer.as_ref().and_then(|answer| answer.get("error")) {
            return Err(self.complaint(verb, complaint));
        }
        let read = answer.and_then(|answer| serde_json::from_value(answer).ok());
        read.ok_or_else(|| {
            let said = if said.is_empty() { String::new() } else { format!("; it said: {said}") };
            let what = format!("{}: the answer to `{verb}` cannot be understood{said}", self.settings.name);
            Trouble::internal(what).perhaps()
        })
    }

    fn start(&self, verb: &str) -> Result<Child, Trouble> {
        let [program, arguments @ ..] = self.settings.exec.as_slice() else {
            return Err(Trouble::internal("exec names no program"));
        };
        let mut command = Command::new(program);
        command.args(arguments).arg(verb).current_dir(&self.settings.folder).env_clear().kill_on_drop(true);
        command.envs(PASSED_ON.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.envs(&self.settings.env);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map_err(|error| {
            Trouble::internal(format!("{}: `{program}` cannot be started: {error}", self.settings.name))
        })
    }

    /// What the program does not say of the effect may have happened.
    fn complaint(&self, verb: &str, said: &Value) -> Trouble {
        let Ok(complaint) = Complaint::deserialize(said) else {
            let what = format!("{}: the error of `{verb}` cannot be understood", self.settings.name);
            return Trouble::internal(what).perhaps();
        };
        let what = complaint.what.unwrap_or_else(|| format!("`{verb}` failed: {}", complaint.kind));
        let trouble = Trouble::new(kind(&complaint.kind), format!("{}: {what}", self.settings.name));
        let retry_after_ms = complaint.retry_after_ms.map(|ms| ms.max(0));
        let trouble = Trouble { retry: trouble.retry || retry_after_ms.is_some(), retry_after_ms, ..trouble };
        if complaint.effect.as_deref() == Some("none") {
            trouble
        } else {
            Trouble { effect: Effect::Perhaps, ..trouble }
        }
    }

    async fn act(&self, verb: &'static str, ask: Value) -> Result<(), Trouble> {
        self.call::<Done>(verb, ask).await.map(drop)
    }
}

/// Writes the question, and reads the first line of the answer and what is said beside it, until the program has ended.
async fn talk(child: &mut Child, ask: String) -> (Vec<u8>, String) {
    let (mut stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    // A program that does not read all of it may answer all the same.
    let write = async {
        if let Some(stdin) = &mut stdin {
            stdin.write_all(ask.as_bytes()).await.ok();
            stdin.write_all(b"\n").await.ok();
        }
        drop(stdin.take());
    };
    let answer = async {
        let mut line = Vec::new();
        if let Some(stdout) = stdout {
            BufReader::new(stdout.take(ANSWER_BYTES)).read_until(b'\n', &mut line).await.ok();
        }
        line
    };
    let mut said = Vec::new();
    let ((), line) = tokio::join!(write, answer);
    if let Some(stderr) = stderr {
        tokio::time::timeout(SAID_WITHIN, stderr.take(SAID_BYTES).read_to_end(&mut said)).await.ok();
    }
    child.wait().await.ok();
    (line, String::from_utf8_lossy(&said).trim().to_owned())
}

fn kind(word: &str) -> TroubleKind {
    match word {
        "capacity" => TroubleKind::Capacity,
        "auth" => TroubleKind::Auth,
        "rate_limit" => TroubleKind::RateLimit,
        "quota" => TroubleKind::Quota,
        "invalid_spec" => TroubleKind::InvalidSpec,
        "region" => TroubleKind::Region,
        "network" => TroubleKind::Network,
        "timeout" => TroubleKind::Timeout,
        "not_found" => TroubleKind::NotFound,
        "disk_full" => TroubleKind::DiskFull,
        _ => TroubleKind::Internal,
    }
}

fn check_name(name: &str) -> Result<(), Trouble> {
    match names::parse(name) {
        Some(_) => Ok(()),
        None => Err(Trouble::new(TroubleKind::InvalidSpec, format!("`{name}` is not the name of an instance"))),
    }
}

/// A handle goes back to the program that gave it; it is never a path or an option there by our doing.
fn check_handle(handle: &Handle) -> Result<(), Trouble> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@".contains(c);
    let text = &handle.0;
    let fine = (1..=256).contains(&text.len()) && text.chars().all(plain) && !text.starts_with(['-', '.', '/']);
    if fine && !text.contains("..") {
        return Ok(());
    }
    Err(Trouble::new(TroubleKind::InvalidSpec, format!("`{}` cannot be a handle", text.escape_default())))
}

impl Provider for ExecProvider {
    fn name(&self) -> &str {
        &self.settings.name
    }
    fn capabilities(&self) -> Capabilities {
        self.settings.capabilities.clone()
    }
    fn reach(&self) -> Reach {
        self.settings.reach
    }
    fn price(&self, _asked: &Resources, _region: &str, spot: bool) -> Credits {
        if spot { self.settings.spot_price } else { self.settings.price_per_hour }
    }
    fn size_for(&self, asked: &Resources) -> Resources {
        asked.clone()
    }
    fn spawn<'a>(&'a self, order: &'a Order) -> ProviderFuture<'a, Handle> {
        Box::pin(async move {
            check_name(&order.boot.name)?;
            let ask = json!({
                "name": order.boot.name, "nonce": order.boot.nonce, "boot": order.boot, "region": order.region,
                "resources": order.resources, "spot": order.spot, "instance_type": order.instance_type,
                "image": order.image, "disk_bytes": order.disk_bytes, "user_data": order.user_data,
                "labels": order.labels, "max_instances": self.settings.capabilities.max_instances,
            });
            let handle = Handle(self.call::<Made>("spawn", ask).await?.handle);
            check_handle(&handle).map_err(Trouble::perhaps)?;
            Ok(handle)
        })
    }
    fn find_by_name<'a>(&'a self, name: &'a str) -> ProviderFuture<'a, Option<Handle>> {
        Box::pin(async move {
            check_name(name)?;
            Ok(self.call::<Found>("find", json!({ "name": name })).await?.handle.map(Handle))
        })
    }
    fn inspect<'a>(&'a self, handle: &'a Handle, nonce: &'a str) -> ProviderFuture<'a, Seen> {
        Box::pin(async move {
            check_handle(handle)?;
            let looked: Looked = self.call("inspect", json!({ "handle": handle.0, "nonce": nonce })).await?;
            match looked.seen.as_str() {
                "alive" => Ok(Seen::Alive),
                "runner_gone" => Ok(Seen::RunnerGone),
                "gone" => Ok(Seen::Gone),
                "stranger" => Ok(Seen::Stranger),
                "queued" => {
                    let why = looked.why.unwrap_or_else(|| "it is queued".to_owned());
                    Ok(Seen::Queued { since: looked.since.map(Timestamp), why })
                }
                other => Err(Trouble::internal(format!("{}: `{other}` is no state of a machine", self.settings.name))),
            }
        })
    }
    fn terminate<'a>(&'a self, handle: &'a Handle, nonce: &'a str) -> ProviderFuture<'a, ()> {
        Box::pin(async move {
            check_handle(handle)?;
            // For a program a missing tag is no tag: `list` gives null for it, too.
            let nonce = Some(nonce).filter(|nonce| !nonce.is_empty());
            self.act("terminate", json!({ "handle": handle.0, "nonce": nonce })).await
        })
    }
    fn list<'a>(&'a self, ask: &'a ListAsk) -> ProviderFuture<'a, ListedPage> {
        Box::pin(async move {
            let asked = json!({ "prefix": ask.prefix, "region": ask.region, "after": ask.after, "limit": ask.limit });
            let Page { mut listed, next, incomplete } = self.call("list", asked).await?;
            for it in &mut listed {
                it.price_micro = it.price_micro.or(Some(self.settings.price_per_hour.micro()));
            }
            Ok(ListedPage { listed, next, incomplete })
        })
    }
    fn delete<'a>(&'a self, kind: ResourceType, handle: &'a Handle) -> ProviderFuture<'a, ()> {
        Box::pin(async move {
            check_handle(handle)?;
            self.act("delete", json!({ "kind": kind, "handle": handle.0 })).await
        })
    }
    fn remove_workdir<'a>(&'a self, handle: &'a Handle, workdir: &'a str) -> ProviderFuture<'a, ()> {
        Box::pin(async move {
            check_handle(handle)?;
            if !is_workdir(workdir) {
                return Err(Trouble::new(TroubleKind::InvalidSpec, format!("`{workdir}` is not a workdir")));
            }
            self.act("remove_workdir", json!({ "handle": handle.0, "workdir": workdir })).await
        })
    }
    fn forget<'a>(&'a self, handle: &'a Handle) -> ProviderFuture<'a, ()> {
        Box::pin(async move {
            check_handle(handle)?;
            self.act("forget", json!({ "handle": handle.0 })).await
        })
    }
    fn workdir_path(&self, _handle: &Handle, _workdir: &str) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(script: &str, timeout_ms: u64) -> ExecProvider {
        ExecProvider::new(ExecSettings {
            name: "mine".into(),
            exec: ["sh", "-c", script, "sh"].map(str::to_owned).to_vec(),
            folder: std::env::temp_dir(),
            env: BTreeMap::new(),
            timeout: Duration::from_millis(timeout_ms),
            capabilities: Capabilities::default(),
            reach: Reach::Host,
            price_per_hour: Credits::ZERO,
            spot_price: Credits::ZERO,
        })
    }

    /// The verb is the last word, and what comes back is told apart: an answer, an error with its effect, and everything else.
    #[tokio::test]
    async fn what_cannot_be_understood_may_have_happened() {
        let handle = Handle("m-1".into());
        let table = [
            (r#"cat >/dev/null; echo '{}'"#, None),
            (r#"test "$1" = terminate && echo '{}'"#, None),
            (
                r#"echo '{"error":{"kind":"capacity","effect":"none"}}'"#,
                Some((TroubleKind::Capacity, true, Effect::None)),
            ),
            (
                r#"echo '{"error":{"kind":"quota","what":"full","retry_after_ms":5}}'"#,
                Some((TroubleKind::Quota, true, Effect::Perhaps)),
            ),
            (
                r#"echo '{"error":{"kind":"auth","effect":"none"}}'; exit 1"#,
                Some((TroubleKind::Auth, false, Effect::None)),
            ),
            (r#"echo '{"error":"no"}'"#, Some((TroubleKind::Internal, true, Effect::Perhaps))),
            ("echo nonsense", Some((TroubleKind::Internal, true, Effect::Perhaps))),
            ("exit 3", Some((TroubleKind::Internal, true, Effect::Perhaps))),
            ("head -c 3000000 /dev/zero", Some((TroubleKind::Internal, true, Effect::Perhaps))),
        ];
        for (script, expected) in table {
            let found = provider(script, 60_000).terminate(&handle, "n").await.err();
            let found = found.map(|trouble| (trouble.kind, trouble.retry, trouble.effect));
            let retry = |it: (TroubleKind, bool, Effect)| (it.0, it.2);
            assert_eq!(found.map(retry), expected.map(retry), "{script}");
        }
        let later = r#"echo '{"error":{"kind":"rate_limit","effect":"none","retry_after_ms":90000}}'"#;
        let trouble = provider(later, 60_000).terminate(&handle, "n").await.unwrap_err();
        assert_eq!((trouble.retry, trouble.retry_after_ms), (true, Some(90_000)));
        let late = provider("exec sleep 60", 50).terminate(&handle, "n").await.unwrap_err();
        assert_eq!((late.kind, late.effect), (TroubleKind::Timeout, Effect::Perhaps));
        let mut none = provider("", 1000);
        none.settings.exec = vec!["/nonexistent/program".into()];
        let trouble = none.terminate(&handle, "n").await.unwrap_err();
        assert_eq!((trouble.kind, trouble.effect), (TroubleKind::Internal, Effect::None));
    }

    /// The program answers with what it was asked, as far as a handle can be that.
    #[tokio::test]
    async fn an_order_says_from_what_and_how_large_the_machine_is_made() {
        let script = r#"q=$(cat)
            for want in '"image":"debian-12"' '"disk_bytes":20000000000' '"user_data":"echo hello"' '"instance_type":null'; do
                case "$q" in *"$want"*) ;; *) echo "{\"error\":{\"kind\":\"invalid_spec\",\"what\":\"no such thing\"}}"; exit;; esac
            done
            echo '{"handle":"m-1"}'"#;
        let resources = Resources { disk_bytes: Some(20_000_000_000), ..Resources::default() };
        let plain = Order::new(crate::conformance::order(1).boot, "here", resources);
        let order = Order { image: Some("debian-12".into()), user_data: Some("echo hello".into()), ..plain.clone() };
        assert_eq!(provider(script, 60_000).spawn(&order).await, Ok(Handle("m-1".into())));
        assert!(provider(script, 60_000).spawn(&plain).await.is_err(), "without one of them it is told null");
    }

    /// What was listed with `"nonce": null` is named so when it is ended.
    #[tokio::test]
    async fn a_machine_without_a_tag_is_ended_without_one() {
        let script = r#"case "$(cat)" in *'"nonce":null'*) echo '{}';; *) echo '{"error":{"kind":"not_found","what":"another"}}';; esac"#;
        let handle = Handle("m-1".into());
        assert_eq!(provider(script, 60_000).terminate(&handle, "").await, Ok(()));
        assert!(provider(script, 60_000).terminate(&handle, "n").await.is_err());
    }

    #[tokio::test]
    async fn states_are_words_and_a_queue_says_why() {
        let handle = Handle("m-1".into());
        for (answer, expected) in [
            (r#"{"seen":"alive"}"#, Some(Seen::Alive)),
            (r#"{"seen":"gone"}"#, Some(Seen::Gone)),
            (
                r#"{"seen":"queued","since":5,"why":"busy"}"#,
                Some(Seen::Queued { since: Some(Timestamp(5)), why: "busy".into() }),
            ),
            (r#"{"seen":"fine"}"#, None),
        ] {
            let found = provider(&format!("echo '{answer}'"), 60_000).inspect(&handle, "n").await;
            assert_eq!(found.ok(), expected, "{answer}");
        }
    }

    #[tokio::test]
    async fn a_handle_that_could_be_an_option_or_a_path_is_refused() {
        for handle in ["", "-rf", "../x", "/etc", "a\nb", "a b"] {
            let refused = provider("echo '{}'", 60_000).terminate(&Handle(handle.into()), "n").await.unwrap_err();
            assert_eq!(refused.kind, TroubleKind::InvalidSpec, "{handle:?}");
        }
    }
}
