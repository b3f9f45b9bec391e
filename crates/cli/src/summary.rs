//! The summary that `repl run` prints when a run has ended, and its exit code.
//! Printed on stderr: stdout belongs to the run's own output.

use crate::complaint::Done;
use crate::meant;
use crate::say::one_line;
use crate::show::{self, Colour, paint_err};
use crate::upload::{Files, Sent};
use std::path::Path;
use wire::api::{AgentsMachinePlan, OfferView, Plan, PoolPlan, ResourcesBody, RunView, Submit};
use wire::model::Credits;
use wire::model::attempt::MINIMUM_CHARGE;
use wire::model::spec::{Command, Gpu, Resources, show_memory};
use wire::model::time::show_duration;

const CANCELLED: u8 = 143;
const OUT_OF_TIME: u8 = 124;
/// The hint shows this many files; more would bury the error itself.
const HINTED_FILES: usize = 3;

/// What travelled before the run, and what was asked for.
#[derive(Default)]
pub struct Sending<'a> {
    pub sent: Option<Sent>,
    pub submit: Option<&'a Submit>,
    pub files: Option<&'a Files>,
    /// Credits of all attempts together, if there were several.
    pub in_all: Option<String>,
    /// Whether any file matched what was to be kept, if something was and the answer is known.
    pub has_artifacts: Option<bool>,
}

/// The work's own code where there is one.
pub fn exit_code(run: &RunView) -> u8 {
    match (run.status.as_str(), run.termination_reason.as_deref()) {
        ("cancelled", _) => CANCELLED,
        ("failed", Some("deadline")) => OUT_OF_TIME,
        (status, _) => match (run.signal, run.exit_code) {
            (Some(signal), _) => 128u8.saturating_add(signal.clamp(0, 127) as u8),
            (None, Some(code)) if code != 0 => code.clamp(0, 255) as u8,
            // A failed run is never a success, however politely its command left.
            (None, _) => u8::from(status != "completed"),
        },
    }
}

/// What a run of agents answers, on stdout: it is the work's own.
pub fn print_output(run: &RunView) {
    if let Some(output) = &run.output {
        crate::say::json(&serde_json::to_string_pretty(output).unwrap_or_default());
    }
    if let Some(why) = &run.output_error {
        eprintln!("repl: its output cannot be evaluated: {}", one_line(why));
    }
}

pub fn print(run: &RunView, sending: &Sending<'_>, terminal: bool) {
    let lines = if terminal { long(run, sending) } else { short(run, sending) };
    for line in lines {
        eprintln!("{}", one_line(&line));
    }
}

/// How it ended, in words.
pub fn verdict(run: &RunView) -> String {
    let because = match (run.signal, run.exit_code) {
        (Some(signal), _) => Some(format!("killed by {}", signal_name(signal))),
        (None, Some(code)) if code != 0 => Some(format!("exit code {code}")),
        _ => None,
    };
    let message = run.last_error.as_ref().map(|error| error.message.clone());
    let code = run.last_error.as_ref().map(|error| error.code.as_str());
    let because = match run.status.as_str() {
        "completed" => run.outcome.clone().filter(|outcome| outcome != "success"),
        "cancelled" => None,
        // The error's own words where they say more than the code.
        _ => match run.termination_reason.as_deref() {
            // Killed for its limit: the code alone would not say so.
            Some("job_failed") if code == Some("limits_exceeded") => match (message, because) {
                (Some(message), Some(because)) => Some(format!("{message}, {because}")),
                (message, because) => message.or(because),
            },
            Some("budget") => Some(match &run.budget {
                Some(budget) if is_budget_spent(run) => format!("its budget of {} is used up", show::credits(budget)),
                _ => "the organisation's credits are used up".to_owned(),
            }),
            Some("job_failed") | None => because.or(message),
            _ => message.or(because),
        },
    };
    match because {
        Some(because) => format!("{}: {because}", run.status),
        None => run.status.clone(),
    }
}

/// Which run executed what a cached run answers.
pub fn origin(run: &RunView) -> Option<String> {
    let from = run.cached_from.as_ref()?;
    let by = from.run.as_deref().unwrap_or("a run that is gone");
    Some(if from.hit { format!("cached from {by}") } else { format!("executed by {by}") })
}

/// Whether a run that could not be given more credits met its own limit. A run shows what its last attempt cost; with earlier
/// ones the budget is the likelier limit.
fn is_budget_spent(run: &RunView) -> bool {
    let budget = run.budget.as_ref().and_then(|budget| budget.parse::<Credits>().ok());
    let charged = Credits(run.credits_charged_micro);
    budget.is_some_and(|budget| run.attempt_number > 1 || budget - charged < MINIMUM_CHARGE)
}

fn short(run: &RunView, sending: &Sending<'_>) -> Vec<String> {
    let mut facts = Vec::new();
    facts.extend(run.duration_ms.map(show_duration));
    facts.push(cost_of(run, sending));
    facts.extend(origin(run));
    facts.extend(sending.sent.map(|sent| travelled(sent, sending.submit)));
    let mut lines = vec![format!("repl: {} {} ({})", run.id, verdict(run), facts.join(", "))];
    lines.extend(hint(run, sending, Path::new("")).map(|hint| format!("repl: {hint}")));
    lines
}

fn long(run: &RunView, sending: &Sending<'_>) -> Vec<String> {
    let (mark, colour) = match run.status.as_str() {
        "completed" => ("✓", Colour::Green),
        "cancelled" => ("■", Colour::Yellow),
        _ => ("✗", Colour::Red),
    };
    let mut lines = vec![format!("{} {} {}", paint_err(colour, mark), paint_err(Colour::Bold, &run.id), verdict(run))];
    let mut say = |text: String| lines.push(format!("  {}", paint_err(Colour::Dim, &text)));
    say(times(run));
    let mut cost = vec![cost_of(run, sending)];
    cost.extend(origin(run));
    cost.extend(sending.sent.map(|sent| travelled(sent, sending.submit)));
    say(cost.join(" · "));
    if let Some(until) = run.hold_until.filter(|until| run.allocation.is_some() && *until > show::now_ms()) {
        let (id, kept) = (&run.id, show::until(until));
        say(format!("its folder is kept {kept}: repl allocation show {id} · repl extend {id}"));
    }
    if sending.has_artifacts == Some(true) {
        say(format!("artifacts: repl artifact get {}", run.id));
    }
    let more = if run.status == "failed" { " · repl why " } else { " · repl logs " };
    say(format!("repl status {}{more}{}", run.id, run.id));
    if let Some(hint) = hint(run, sending, Path::new("")) {
        lines.push(format!("  {}", paint_err(Colour::Yellow, &hint)));
    }
    lines
}

fn cost_of(run: &RunView, sending: &Sending<'_>) -> String {
    match &sending.in_all {
        Some(in_all) => format!("{} in {} attempts", show::credits(in_all), run.attempt_number),
        None => show::credits(&run.credits_charged),
    }
}

/// Where the time went.
pub fn times(run: &RunView) -> String {
    let place = match (&run.instance, run.warm) {
        (Some(instance), Some(true)) => format!(" ({instance}, warm)"),
        (Some(instance), _) => format!(" ({instance}, new)"),
        (None, _) => String::new(),
    };
    let parts =
        [("queued", run.queued_ms, ""), ("starting", run.starting_ms, &*place), ("running", run.running_ms, "")];
    let parts = parts.into_iter().filter_map(|(name, ms, place)| Some(format!("{name} {}{place}", show_duration(ms?))));
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() { "never started".to_owned() } else { parts.join(" · ") }
}

/// How many files there are and how many had to travel.
pub fn travelled(sent: Sent, submit: Option<&Submit>) -> String {
    let there = submit
        .and_then(|submit| submit.files.as_ref())
        .map(|files| format!("{} ({}), ", show::count(files.files, "file"), show::size(files.bytes)));
    let sent = match sent.blobs {
        0 => "none sent".to_owned(),
        blobs => format!("{blobs} sent ({})", show::size(sent.bytes)),
    };
    format!("{}{sent}", there.unwrap_or_else(|| "files: ".to_owned()))
}

/// What would help, where that is known.
fn hint(run: &RunView, sending: &Sending<'_>, here: &Path) -> Option<String> {
    limit_hint(run, sending).or_else(|| shell_hint(run, sending)).or_else(|| files_hint(run, sending, here))
}

/// A program that was not found, where a shell was meant.
fn shell_hint(run: &RunView, sending: &Sending<'_>) -> Option<String> {
    let argv = &sending.submit.filter(|_| run.status == "failed" && run.exit_code == Some(127))?.argv;
    let why = Command::Argv(argv.clone()).needs_shell()?;
    let typed = ["repl", "run", "-c", &argv.join(" ")].map(str::to_owned);
    Some(format!("hint: {why}: {}", meant::quoted(&typed)))
}

/// Which flag raises the limit that ended it.
fn limit_hint(run: &RunView, sending: &Sending<'_>) -> Option<String> {
    let code = run.last_error.as_ref().map(|error| error.code.as_str());
    match run.termination_reason.as_deref() {
        _ if run.status != "failed" => None,
        Some("budget") => Some(match &run.budget {
            Some(budget) if is_budget_spent(run) => format!("hint: submit it again with --budget above {budget}"),
            _ => "hint: repl credits add AMOUNT, then submit it again".to_owned(),
        }),
        Some("deadline") => Some("hint: submit it again with a longer --max-duration".to_owned()),
        _ if code == Some("limits_exceeded")
            && run.last_error.as_ref().is_some_and(|it| it.message.contains("memory")) =>
        {
            let had = sending.submit.and_then(|submit| submit.resources.memory_bytes);
            Some(match had {
                Some(bytes) => format!("hint: submit it again with --memory above {}", show_memory(bytes)),
                None => "hint: submit it again with a larger --memory".to_owned(),
            })
        }
        _ => None,
    }
}

/// A failed command that names a file which is here and was not sent: the likeliest of all mistakes.
fn files_hint(run: &RunView, sending: &Sending<'_>, here: &Path) -> Option<String> {
    let submit = sending.submit.filter(|_| run.status == "failed")?;
    let text = submit.commands.iter().chain(&submit.argv).cloned().collect::<Vec<_>>().join(" ");
    let words = text.split(|c: char| c.is_whitespace() || ";|&<>()'\"=".contains(c));
    let mut forgotten: Vec<&str> = Vec::new();
    for word in words.map(|word| word.trim_start_matches("./")) {
        let sent = sending.files.is_some_and(|files| files.names(word));
        let looks_like_one = wire::model::spec::is_inside(word) && !word.starts_with(['-', '.', '$']);
        if looks_like_one && !sent && !forgotten.contains(&word) && here.join(word).exists() {
            forgotten.push(word);
        }
    }
    forgotten.truncate(HINTED_FILES);
    let flags: Vec<String> = forgotten.iter().map(|word| format!("--file {word}")).collect();
    let what = if forgotten.len() == 1 { "is here but was" } else { "are here but were" };
    (!forgotten.is_empty()).then(|| format!("hint: {} {what} not sent: add {}", forgotten.join(", "), flags.join(" ")))
}

pub fn signal_name(signal: i32) -> String {
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(known) => known.as_str().to_owned(),
        Err(_) => format!("signal {signal}"),
    }
}

/// What would become of it.
pub fn dry_run(plan: &Plan, submit: &Submit, json: bool) -> Done {
    if json {
        return show::json(plan);
    }
    show::pairs(&planned(plan, submit));
    eprintln!("repl: nothing was sent or started");
    Ok(0)
}

fn resources(it: &ResourcesBody) -> Resources {
    Resources {
        cpu_milli: it.cpu_milli,
        memory_bytes: it.memory_bytes,
        gpu: it.gpu.as_deref().and_then(|text| Gpu::parse(text).ok()),
        disk_bytes: it.disk_bytes,
    }
}

/// Which machine it would be, of those that wait for it or of new ones.
fn machine(machine: Option<&str>, placement: &str, waiting: i64, size: &Resources) -> String {
    match (machine, placement, waiting) {
        (Some(machine), ..) => format!("{machine}, which waits for it (warm): {size}"),
        (None, "start_machine", _) => format!("a new one: {size}"),
        (None, "replace_machine", _) => format!("a new one, after an idle one that does not fit has ended: {size}"),
        (None, _, 0) => format!("the first that becomes free: {size}"),
        (None, _, waiting) => format!("waits behind {} for one: {size}", show::count(waiting, "run")),
    }
}

fn pool((provider, region): (&str, &str), pool: &PoolPlan) -> String {
    format!(
        "{provider}/{region}: {} of {} machines exist, {} free, {} waiting",
        pool.instances, pool.max_instances, pool.available, pool.waiting
    )
}

/// The machine of some agents of a plan, in the words of a run's.
pub fn planned_machine(it: &AgentsMachinePlan) -> [(&'static str, Option<String>); 4] {
    let limits = resources(&it.limits);
    let unlimited = limits == Resources::default();
    let size = resources(&it.machine_size);
    [
        ("pool", Some(pool((&it.provider, &it.region), &it.pool))),
        ("machine", Some(machine(it.machine.as_deref(), &it.placement, it.pool.waiting, &size))),
        ("limits", Some(if unlimited { "none: the whole machine".to_owned() } else { limits.to_string() })),
        ("price", Some(format!("{} credits an hour", it.price_per_hour))),
    ]
}

fn planned(plan: &Plan, submit: &Submit) -> [(&'static str, Option<String>); 16] {
    let (size, limits) = (resources(&plan.machine_size), resources(&plan.limits));
    let unlimited = limits == Resources::default();
    let machine = machine(plan.machine.as_deref(), &plan.placement, plan.pool.waiting, &size);
    let init = plan.init.as_ref().map(|init| match init.as_str() {
        "done" => "skipped: the machine has it",
        _ => "runs before the command",
    });
    let most =
        plan.credits_most.as_ref().map_or_else(|| "no bound".to_owned(), |most| format!("at most {most} in all"));
    let files = &plan.files;
    let sent = match files.to_send.unwrap_or(0) {
        0 => "nothing to send".to_owned(),
        blobs => format!("{blobs} to send ({})", show::size(files.bytes_to_send.unwrap_or(0))),
    };
    let travels = files.count > 0 || submit.stdin.is_some();
    let kept = (!plan.artifacts.is_empty()).then(|| plan.artifacts.join(", "));
    [
        ("would run", Some(plan.command.replace('\n', "; "))),
        ("pool", Some(pool((&plan.provider, &plan.region), &plan.pool))),
        ("machine", Some(machine)),
        ("init", init.map(str::to_owned)),
        ("limits", Some(if unlimited { "none: the whole machine".to_owned() } else { limits.to_string() })),
        ("sandbox", plan.sandbox.as_ref().map(|network| format!("yes, network {network}"))),
        ("runs for", plan.max_duration_ms.map(|ms| format!("{} at most", show_duration(ms)))),
        ("price", Some(format!("{} credits an hour", plan.price_per_hour))),
        ("or else", or_else(plan)),
        ("host", plan.host.clone()),
        ("other hosts", other_hosts(plan)),
        ("not tried", not_tried(plan)),
        (
            "set aside",
            Some(format!(
                "{} credits at its start, {most}; {} are available",
                plan.credits_reserved, plan.credits_available
            )),
        ),
        ("stdin", submit.stdin.as_ref().map(|stdin| show::size(stdin.size))),
        ("files", travels.then(|| format!("{} ({}), {sent}", files.count, show::size(files.bytes)))),
        ("kept", kept),
    ]
}

/// Machines that are tried when the first cannot be had.
fn or_else(plan: &Plan) -> Option<String> {
    let shown = |it: &OfferView| {
        let spot = if it.spot { " (spot)" } else { "" };
        let kind = it.instance_type.as_ref().map_or_else(String::new, |kind| format!(" {kind}"));
        format!("{}/{}{kind}{spot} at {}", it.provider, it.region, it.price_per_hour)
    };
    let others: Vec<String> = plan.offers.iter().skip(1).map(shown).collect();
    (!others.is_empty()).then(|| others.join(", "))
}

fn other_hosts(plan: &Plan) -> Option<String> {
    let others: Vec<String> = plan.other_hosts.iter().map(|it| format!("{}: {}", it.host, it.why)).collect();
    (!others.is_empty()).then(|| others.join("; "))
}

fn not_tried(plan: &Plan) -> Option<String> {
    let others: Vec<String> = plan.passed_over.iter().map(|it| format!("{}: {}", it.provider, it.why)).collect();
    (!others.is_empty()).then(|| others.join("; "))
}

/// A run to try how one is shown.
#[cfg(test)]
pub fn sample() -> RunView {
    tests::ended("running", "", None, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A run that ended so.
    pub fn ended(status: &str, reason: &str, code: Option<i32>, signal: Option<i32>) -> RunView {
        let mut view = json!({
            "id": "run_9ix", "name": "n", "type": "task", "status": status, "attempt_number": 1, "max_attempts": 3,
            "plan_version": 1, "agent_count": 1, "task_count": 1, "step_count": 1, "failure_mode": "fail-fast",
            "max_agents": 10, "priority": "normal", "credits_reserved": "0.01", "credits_reserved_micro": 10000,
            "credits_charged": "0.000003", "credits_charged_micro": 3, "credits_refunded": "0.009997",
            "credits_refunded_micro": 9997, "created_at": 0, "duration_ms": 1500, "queued_ms": 12, "starting_ms": 40,
            "running_ms": 1400, "command": "sh", "context": {}, "warm": true, "instance": "ins_1", "late_evidence": [],
            "links": {}, "termination_reason": reason, "outcome": "success",
        });
        view["exit_code"] = json!(code);
        view["signal"] = json!(signal);
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn ends_have_the_codes_of_the_surface() {
        let table = [
            (ended("completed", "all_done", Some(0), None), 0, "completed"),
            (ended("failed", "job_failed", Some(3), None), 3, "failed: exit code 3"),
            (ended("failed", "job_failed", None, Some(9)), 137, "failed: killed by SIGKILL"),
            (ended("failed", "deadline", None, Some(15)), 124, "failed: killed by SIGTERM"),
            (ended("cancelled", "stopped_by_user", None, Some(15)), 143, "cancelled"),
            (ended("failed", "poisoned", None, None), 1, "failed"),
            (ended("failed", "budget", Some(0), None), 1, "failed: the organisation's credits are used up"),
        ];
        for (run, code, said) in table {
            assert_eq!((exit_code(&run), verdict(&run).as_str()), (code, said));
        }
    }

    #[test]
    fn an_end_by_a_limit_names_the_flag_that_raises_it() {
        let mut run = ended("failed", "budget", None, Some(15));
        (run.budget, run.credits_charged, run.credits_charged_micro) = (Some("1".into()), "1".into(), 1_000_000);
        assert_eq!(
            short(&run, &Sending::default()),
            [
                "repl: run_9ix failed: its budget of 1 credit is used up (1.5s, 1 credit)",
                "repl: hint: submit it again with --budget above 1"
            ]
        );
        run.credits_charged_micro = 500_000;
        assert_eq!(verdict(&run), "failed: the organisation's credits are used up", "its own limit was not met");
        let run = ended("failed", "deadline", None, Some(15));
        assert!(short(&run, &Sending::default())[1].ends_with("a longer --max-duration"));
        let mut run = ended("failed", "job_failed", Some(137), None);
        let cause = Some("the memory limit was reached".to_owned());
        run.last_error = Some(wire::api::ErrorView {
            code: "limits_exceeded".into(),
            message: "the memory limit was reached".into(),
            cause,
        });
        let mut submit = Submit::default();
        submit.resources.memory_bytes = Some(64 << 20);
        let sending = Sending { submit: Some(&submit), ..Sending::default() };
        assert_eq!(
            short(&run, &sending),
            [
                "repl: run_9ix failed: the memory limit was reached, exit code 137 (1.5s, 0.000003 credits)",
                "repl: hint: submit it again with --memory above 64MB"
            ]
        );
    }

    #[test]
    fn a_pipe_gets_one_line() {
        let sending = Sending { sent: Some(Sent { blobs: 1, bytes: 2048 }), ..Sending::default() };
        assert_eq!(
            short(&ended("failed", "job_failed", Some(3), None), &sending),
            ["repl: run_9ix failed: exit code 3 (1.5s, 0.000003 credits, files: 1 sent (2.0 KB))"]
        );
        let retried = RunView { attempt_number: 2, ..ended("failed", "job_failed", Some(3), None) };
        let sending = Sending { in_all: Some("0.000006".into()), ..Sending::default() };
        assert_eq!(
            short(&retried, &sending),
            ["repl: run_9ix failed: exit code 3 (1.5s, 0.000006 credits in 2 attempts)"]
        );
        assert_eq!(times(&ended("failed", "", None, None)), "queued 12ms · starting 40ms (ins_1, warm) · running 1.4s");
    }

    #[test]
    fn a_forgotten_file_is_mentioned_after_a_failure() {
        let here = tempfile::tempdir().unwrap();
        std::fs::write(here.path().join("train.py"), "").unwrap();
        let submit = Submit { commands: vec!["python3 ./train.py --lr=1".into()], ..Submit::default() };
        let sending = Sending { submit: Some(&submit), ..Sending::default() };
        let failed = ended("failed", "job_failed", Some(2), None);
        assert_eq!(
            hint(&failed, &sending, here.path()).as_deref(),
            Some("hint: train.py is here but was not sent: add --file train.py")
        );
        assert_eq!(hint(&ended("completed", "all_done", Some(0), None), &sending, here.path()), None);
    }

    #[test]
    fn a_line_for_a_shell_is_shown_where_it_belongs() {
        let here = Path::new("/nowhere");
        let hinted = |argv: &[&str], code| {
            let argv = argv.iter().map(|word| (*word).to_owned()).collect();
            let submit = Submit { argv, ..Submit::default() };
            let sending = Sending { submit: Some(&submit), ..Sending::default() };
            hint(&ended("failed", "job_failed", Some(code), None), &sending, here).unwrap_or_default()
        };
        assert!(hinted(&["echo hello"], 127).ends_with(": repl run -c 'echo hello'"));
        assert!(hinted(&["cd", "src"], 127).ends_with("is written after -c: repl run -c 'cd src'"));
        assert_eq!((hinted(&["cd", "src"], 1), hinted(&["nothing"], 127)), (String::new(), String::new()));
    }

    #[test]
    fn artifacts_are_brought_back_only_if_there_are_any() {
        let submit = Submit { artifacts: vec!["out/*".into()], ..Submit::default() };
        let run = ended("completed", "all_done", Some(0), None);
        let said = |has_artifacts| {
            let sending = Sending { submit: Some(&submit), has_artifacts, ..Sending::default() };
            long(&run, &sending).join("\n")
        };
        assert!(said(Some(true)).contains("repl artifact get run_9ix"));
        assert!(!said(Some(false)).contains("artifact") && !said(None).contains("artifact"));
    }
}
