//! What was used, as tables: of a run (`repl status --cost`) and of the org (`repl credits usage`).

use crate::complaint::Done;
use crate::control_plane::ControlPlane;
use crate::ps;
use crate::say::one_line;
use crate::show::{self, Colour, Table, paint};
use wire::api::{RunUsageView, RunView, UsageGroups, UsageSums, UsageView};
use wire::model::time::show_duration;

/// Steps that are shown or told; a page has at most 1,000.
const SHOWN_STEPS: usize = 50;
const MOST_STEPS: usize = 100_000;
const PAGE: usize = 1_000;

/// `repl status --cost`.
pub async fn status(plane: &ControlPlane, run: &str, json: bool) -> Done {
    let usage = all_pages(plane, run, if json { MOST_STEPS } else { SHOWN_STEPS }).await?;
    if json {
        return show::json(&usage);
    }
    let view: RunView = plane.get(&format!("/runs/{run}")).await?;
    let cost = show::credits(&usage.total.charged);
    println!("{} {} {} · {cost}", paint(Colour::Bold, &view.id), one_line(&view.name), ps::state(&view));
    groups("AGENT", &usage.agents, "no agent");
    if usage.models.groups.iter().any(|group| group.key.is_some()) {
        println!();
        groups("MODEL", &usage.models, "no model");
    }
    if !usage.steps.is_empty() {
        println!();
        steps(&usage);
    }
    estimated(&usage.total);
    Ok(0)
}

/// As one answer, with the steps of as many pages as are wanted.
async fn all_pages(plane: &ControlPlane, run: &str, most: usize) -> Done<RunUsageView> {
    let path = format!("/runs/{run}/usage?limit={}", most.min(PAGE));
    let mut all: RunUsageView = plane.get(&path).await?;
    while let Some(cursor) = all.next_cursor.take_if(|_| all.steps.len() < most) {
        let next: RunUsageView = plane.get(&format!("{path}&cursor={cursor}")).await?;
        all.steps.extend(next.steps);
        all.next_cursor = next.next_cursor;
    }
    Ok(all)
}

/// `repl credits usage`.
pub fn of_org(view: &UsageView) -> Done {
    match view.by.as_str() {
        "run" => runs(view),
        "agent" => groups("AGENT", &view.groups, "no agent"),
        "model" => groups("MODEL", &view.groups, "no model"),
        "provider" => groups("PROVIDER", &view.groups, "no provider"),
        _ => groups("DAY", &view.groups, "-"),
    }
    let ends = if view.to > show::now_ms() { String::new() } else { format!(" until {}", show::clock(view.to)) };
    println!("{} since {}{ends}", show::credits(&view.total.charged), show::clock(view.from));
    estimated(&view.total);
    Ok(0)
}

fn runs(view: &UsageView) {
    let heads = ["CREDITS", "IN", "OUT", "TURNS", "MACHINE", "RUN", "NAME"];
    let mut table = Table::new(heads).without_if_narrow(&["TURNS", "OUT", "IN"]);
    let mut row = |usage: &UsageSums, run: String, name: String| {
        let [credits, input, output, turns, _, machine] = cells(usage);
        table.row([credits, input, output, turns, machine, run, name]);
    };
    for group in &view.groups.groups {
        let run = group.key.clone().unwrap_or_else(|| "holds and idle machines".to_owned());
        row(&group.usage, run, group.name.clone().unwrap_or_default());
    }
    if let Some(others) = &view.groups.others {
        row(others, "others".to_owned(), String::new());
    }
    table.print("nothing spent");
}

fn groups(head: &'static str, found: &UsageGroups, none: &str) {
    let mut table = Table::new(["CREDITS", "IN", "OUT", "TURNS", "CALLS", "MACHINE", head]);
    let mut row = |usage: &UsageSums, name: String| {
        let [credits, input, output, turns, calls, machine] = cells(usage);
        table.row([credits, input, output, turns, calls, machine, name]);
    };
    for group in &found.groups {
        row(&group.usage, group.key.clone().unwrap_or_else(|| none.to_owned()));
    }
    if let Some(others) = &found.others {
        row(others, "others".to_owned());
    }
    table.print("nothing spent");
}

fn steps(usage: &RunUsageView) {
    let heads = ["CREDITS", "IN", "OUT", "TURNS", "CALLS", "MODEL", "STEP"];
    let mut table = Table::new(heads).with_paths();
    for step in &usage.steps {
        let [credits, input, output, turns, calls, _] = cells(&step.usage);
        let attempt = if step.attempt > 1 { format!(" (attempt {})", step.attempt) } else { String::new() };
        let name = format!("{}{attempt}", step.path);
        table.row([credits, input, output, turns, calls, show::or_dash(step.model.as_ref()), name]);
    }
    table.print("");
    if usage.next_cursor.is_some() {
        println!("more than {SHOWN_STEPS} steps: --json has them all");
    }
}

/// Credits, tokens in and out, turns, calls, machine time. `~` marks numbers that are partly estimated.
fn cells(usage: &UsageSums) -> [String; 6] {
    let some = |count: i64| if count == 0 { "-".to_owned() } else { count.to_string() };
    let mark = |text: String| if usage.estimated_turns > 0 { format!("~{text}") } else { text };
    let machine = if usage.machine_ms == 0 { "-".to_owned() } else { show_duration(usage.machine_ms) };
    let tokens = |count: i64| mark(some(count));
    [
        usage.charged.clone(),
        tokens(usage.input_tokens),
        tokens(usage.output_tokens),
        some(usage.turns),
        some(usage.tool_calls),
        machine,
    ]
}

fn estimated(total: &UsageSums) {
    if total.estimated_turns > 0 {
        let turns = show::count(total.estimated_turns, "turn");
        println!("~ of {turns} the tokens are estimated: the model's server did not count them");
    }
}
