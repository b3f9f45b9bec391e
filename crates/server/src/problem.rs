//! Failures as RFC 9457 problem documents: a status, a code a program can match, a sentence, and the fix where there is one.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::Key;
use model::host::NotTaken;
use model::offer::Passed;
use model::refused::Unfit;
use model::spec::{Gpu, Resources, show_cpu, show_memory};
use model::{Failure, Refused, Trouble, TroubleKind};
use serde_json::{Value, json};

/// What a handler returns instead of an answer.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    fix: Option<Box<str>>,
    allowed: Vec<&'static str>,
    errors: Vec<model::refused::BadPlan>,
    retry_after_s: Option<i64>,
    hidden: Option<Box<str>>,
}

/// Why an answer failed, for the log: a problem document never quotes a statement, a path or an address of this host.
#[derive(Debug, Clone)]
pub(crate) struct Hidden(pub(crate) String);

pub(crate) type HandlerResult<T = Response> = Result<T, Problem>;

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Problem {
        Problem {
            status,
            code,
            detail: detail.into(),
            fix: None,
            allowed: Vec::new(),
            errors: Vec::new(),
            retry_after_s: None,
            hidden: None,
        }
    }
    /// A failure that is ours, whatever it was: its cause is in the log under the request's id.
    pub(crate) fn internal(cause: impl Into<String>) -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "this failed inside the control plane")
            .fix("look for this request id in the control plane's log; a repetition is likely to fail the same way")
            .hidden(cause)
    }
    fn hidden(mut self, cause: impl Into<String>) -> Problem {
        self.hidden = Some(cause.into().into());
        self
    }
    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Problem {
        self.fix = Some(fix.into().into());
        self
    }
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }
    pub(crate) fn fix_text(&self) -> Option<&str> {
        self.fix.as_deref()
    }
    pub(crate) fn retry_after(mut self, seconds: i64) -> Problem {
        self.retry_after_s = Some(seconds);
        self
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Problem {
        match failure {
            Failure::Refused(refused) => refused.into(),
            Failure::Trouble(trouble) => trouble.into(),
        }
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Problem {
        let status = match &refused {
            Refused::NotFound { .. } => StatusCode::NOT_FOUND,
            Refused::NotFrom { .. }
            | Refused::Conflict { .. }
            | Refused::Stale { .. }
            | Refused::Fenced { .. }
            | Refused::Held { .. } => StatusCode::CONFLICT,
            Refused::OldEpoch { .. } | Refused::OldTry { .. } | Refused::LogGap { .. } | Refused::KeyBusy { .. } => {
                StatusCode::CONFLICT
            }
            Refused::Unaffordable { .. } | Refused::BudgetSpent { .. } => StatusCode::PAYMENT_REQUIRED,
            Refused::Invalid { .. } | Refused::Unasked { .. } => StatusCode::BAD_REQUEST,
            Refused::KeyReused | Refused::DoesNotFit(_) | Refused::NoSandbox { .. } | Refused::InvalidPlan { .. } => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            Refused::Unauthorized { .. } => StatusCode::UNAUTHORIZED,
            Refused::Forbidden { .. } => StatusCode::FORBIDDEN,
            Refused::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Refused::Gone { .. } | Refused::Unlisted { .. } => StatusCode::GONE,
        };
        let mut problem = Problem::new(status, refused.code(), refused.to_string());
        match &refused {
            Refused::NotFrom { allowed, .. } => {
                problem.allowed = allowed.clone();
                if !allowed.is_empty() {
                    problem.fix = Some(format!("possible now: {}", allowed.join(", ")).into());
                }
            }
            Refused::InvalidPlan { problems } => {
                problem.errors = problems.clone();
                problem.fix = problems.first().and_then(|first| first.fix.clone()).map(Into::into);
            }
            Refused::Unaffordable { .. } => {
                problem.fix = Some("add credits (repl credits add AMOUNT) or lower --budget".into())
            }
            Refused::DoesNotFit(unfit) => problem.fix = Some(fitting(unfit).into()),
            Refused::NoSandbox { .. } => {
                problem.fix = Some(
                    "install bubblewrap there (apt install bubblewrap; `repl doctor` says what is missing), or do without: \
                     --no-sandbox, and `sandbox: off` in a plan of agents"
                        .into(),
                )
            }
            Refused::Unasked { provider } => problem.fix = Some(format!("if you mean it: --provider {provider}").into()),
            Refused::BudgetSpent { .. } => problem.fix = Some("submit it again with a larger --budget".into()),
            Refused::Forbidden { scope, .. } => {
                let fix = format!(
                    "use a token with that scope; one with the scope admin makes it: repl token create NAME --scope {scope}"
                );
                problem.fix = Some(fix.into());
            }
            Refused::KeyBusy { after_ms } => problem.retry_after_s = Some((after_ms + 999) / 1000),
            Refused::Held { .. } => problem.fix = Some("release it (repl release ALC), or use --force".into()),
            Refused::Unauthorized { .. } => {
                problem.fix = Some("send a token: Authorization: Bearer rmd_… (REPL_TOKEN)".into())
            }
            _ => {}
        }
        problem
    }
}

/// What can be asked for instead, in the words of the command line or of a plan.
fn fitting(unfit: &Unfit) -> String {
    let said = |key: &str, value: &str| match unfit.at {
        Some(_) => format!("`{key}: {value}`"),
        None if key == "disk" => format!("resources.disk {value}"),
        None => format!("--{key} {value}"),
    };
    let gpus = |models: Vec<String>| {
        let gpus: Vec<String> = models.iter().map(|model| said("gpu", model)).collect();
        match unfit.at {
            _ if !gpus.is_empty() => format!("ask for {}", gpus.join(" or ")),
            Some(_) => "leave out its `gpu`".to_owned(),
            None => "leave out --gpu".to_owned(),
        }
    };
    let less = match &unfit.why {
        Passed::TooLarge { largest } => at_most(&unfit.asked, largest, said),
        Passed::NoSuchGpu { gpus: models } => gpus(models.iter().map(Gpu::to_string).collect()),
        Passed::NoHost { hosts } => of_hosts(hosts, gpus(Vec::new()), |largest| at_most(&unfit.asked, largest, said)),
        _ => "ask for less".to_owned(),
    };
    let another = match (unfit.others.as_slice(), &unfit.at) {
        ([], _) => "add a provider that has it (repl provider add)".to_owned(),
        (names, Some(_)) => format!("choose `provider: {}`", names.join("` or `provider: ")),
        (names, None) => format!("choose --provider {}", names.join(" or --provider ")),
    };
    format!("{less}, or {another}")
}

/// Hosts call their GPUs by names that `--gpu` takes only parts of, so the names are left to the refusal itself.
fn of_hosts(hosts: &[(String, NotTaken)], without_gpu: String, at_most: impl Fn(&Resources) -> String) -> String {
    let (mut sizes, mut has_gpus) = (Vec::new(), false);
    for (_, why) in hosts {
        match why {
            NotTaken::TooSmall { has } => sizes.push(has),
            NotTaken::OtherGpus { has } => has_gpus |= !has.is_empty(),
            _ => {}
        }
    }
    match sizes.iter().max_by_key(|size| (size.cpu_milli, size.memory_bytes)) {
        Some(largest) if sizes.len() == hosts.len() => at_most(largest),
        None if !has_gpus => without_gpu,
        _ => "ask for what one of its hosts has".to_owned(),
    }
}

/// The most that can be asked for, of what was asked too much.
fn at_most(asked: &Resources, largest: &Resources, said: impl Fn(&str, &str) -> String) -> String {
    let more =
        |asked: Option<i64>, largest: Option<i64>| largest.filter(|largest| asked.is_some_and(|it| it > *largest));
    let cpu = more(asked.cpu_milli, largest.cpu_milli).map(|milli| said("cpu", &show_cpu(milli)));
    let memory = more(asked.memory_bytes, largest.memory_bytes).map(|bytes| said("memory", &show_memory(bytes)));
    let disk = more(asked.disk_bytes, largest.disk_bytes).map(|bytes| said("disk", &show_memory(bytes)));
    let most: Vec<String> = cpu.into_iter().chain(memory).chain(disk).collect();
    format!("ask for at most {}", most.join(" "))
}

impl From<Trouble> for Problem {
    fn from(trouble: Trouble) -> Problem {
        let unavailable = |detail: &str| {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", format!("not possible just now: {detail}"))
                .retry_after(1)
        };
        let problem = match trouble.kind {
            TroubleKind::DiskFull => {
                Problem::new(StatusCode::INSUFFICIENT_STORAGE, "disk_full", "the control plane's disk is full")
                    .fix("free some space on the control plane's disk; nothing was lost")
                    .retry_after(10)
            }
            TroubleKind::NotFound => {
                Problem::new(StatusCode::NOT_FOUND, "not_found", "what was asked for is not there")
            }
            _ if !trouble.retry => return Problem::internal(trouble.what),
            TroubleKind::Database => unavailable("the control plane's database does not answer as it should"),
            TroubleKind::Timeout => unavailable("the control plane's database took too long"),
            TroubleKind::Network => unavailable("a connection broke off"),
            _ => unavailable("the control plane is short of something; its log says what"),
        };
        problem.hidden(trouble.what)
    }
}

/// Refusals that repetitions of a keyed request are answered with again: decisions about a well-formed request of a client who may
/// ask. Payment, permission, rate, validation and our own trouble may be otherwise the next time.
const REMEMBERED: [StatusCode; 3] = [StatusCode::NOT_FOUND, StatusCode::CONFLICT, StatusCode::UNPROCESSABLE_ENTITY];

/// The document as it is answered the first time, with the id of that request.
pub(crate) fn remembered(refused: &Refused, key: &Key) -> Option<(i64, Vec<u8>)> {
    // A button is pressed again when what stood in its way is gone: its form is the same, and it is judged anew.
    if key.route.starts_with(crate::input::OF_PAGES) {
        return None;
    }
    let problem = Problem::from(refused.clone());
    if !REMEMBERED.contains(&problem.status) {
        return None;
    }
    let mut document = problem.document();
    document["request_id"] = key.request.clone().into();
    Some((problem.status.as_u16().into(), document.to_string().into_bytes()))
}

pub(crate) const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

impl Problem {
    fn document(&self) -> Value {
        let mut body = json!({
            "type": format!("urn:remuda:problem:{}", self.code),
            "title": self.status.canonical_reason().unwrap_or("error"),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        if let Some(fix) = &self.fix {
            body["fix"] = fix.clone().into_string().into();
        }
        if !self.allowed.is_empty() {
            body["allowed"] = json!(self.allowed);
        }
        if !self.errors.is_empty() {
            body["errors"] = json!(self.errors);
        }
        body
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.document())).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, PROBLEM);
        if self.status == StatusCode::UNAUTHORIZED {
            // Which scheme is wanted (RFC 9110, 11.6.1).
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"remuda\""));
        }
        if let Some(cause) = self.hidden {
            response.extensions_mut().insert(Hidden(cause.into_string()));
        }
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_refused_with_what_can_be_asked_for() {
        let gpu = |text: &str| Gpu::parse(text).unwrap();
        let size = |cores: i64, gib: i64| Resources {
            cpu_milli: Some(cores * 1000),
            memory_bytes: Some(gib << 30),
            ..Resources::default()
        };
        let host = |why: NotTaken| vec![("a".to_owned(), why)];
        let asked = Resources { gpu: Some(gpu("h100:9")), ..size(64, 2) };
        let add = "or add a provider that has it (repl provider add)";
        let table = [
            (Passed::TooLarge { largest: size(4, 8) }, "ask for at most --cpu 4", "ask for at most `cpu: 4`"),
            (Passed::NoSuchGpu { gpus: vec![] }, "leave out --gpu", "leave out its `gpu`"),
            (
                Passed::NoSuchGpu { gpus: vec![gpu("a100:2"), gpu("t4")] },
                "ask for --gpu a100:2 or --gpu t4:1",
                "ask for `gpu: a100:2` or `gpu: t4:1`",
            ),
            (
                Passed::NoHost { hosts: host(NotTaken::TooSmall { has: size(4, 8) }) },
                "ask for at most --cpu 4",
                "ask for at most `cpu: 4`",
            ),
            (
                Passed::NoHost { hosts: host(NotTaken::OtherGpus { has: vec![] }) },
                "leave out --gpu",
                "leave out its `gpu`",
            ),
            (
                Passed::NoHost { hosts: host(NotTaken::OtherGpus { has: vec!["NVIDIA A100".into()] }) },
                "ask for what one of its hosts has",
                "ask for what one of its hosts has",
            ),
        ];
        for (why, flags, keys) in table {
            for (at, less) in [(None, flags), (Some("agents.build".to_owned()), keys)] {
                let unfit = Unfit { at, asked: asked.clone(), place: "lab".into(), why: why.clone(), others: vec![] };
                assert_eq!(fitting(&unfit), format!("{less}, {add}"));
                let others = vec!["cloud".to_owned(), "big".to_owned()];
                let another = match unfit.at {
                    Some(_) => "choose `provider: cloud` or `provider: big`",
                    None => "choose --provider cloud or --provider big",
                };
                assert_eq!(fitting(&Unfit { others, ..unfit }), format!("{less}, or {another}"));
            }
        }
    }
}
