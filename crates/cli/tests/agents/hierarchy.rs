//! Agents, tasks and steps of mixed modes against servers that fail in every way: each ends as the table of failure modes says.

use crate::model::{Reply, Script};
use crate::recorder::{self, Recorder};
use crate::scene::Scene;
use serde_json::json;

/// An agent: its name, its mode, how it ends, and its tasks.
type Agent = (&'static str, &'static str, &'static str, [Task; 5]);
/// A task: its mode, how its three steps are treated, and how it and they end.
type Task = (&'static str, &'static str, &'static str);

/// Steps of models, one letter each: `.` is answered; `r` first told to wait, `o` first refused as overloaded, `5` first answered 500,
/// `c` first cut off, `h` first left without an answer; `u` answered without usage; `j` first answered with broken JSON, which is sent back.
/// `H` gets a page of HTML, `C` is always cut off, `J` always gets broken JSON, `g` gets a page the first time, `G` the first two times.
/// Steps of HTTP: `p` is answered, `b` first told to wait, `d` first answered 503, `M` is not found.
///
/// Ends: `c` completed, `f` failed, `s` skipped, `x` cancelled, `-` no row at all.
const AGENTS: [Agent; 10] = [
    (
        "calm",
        "fail-fast",
        "completed success",
        [
            ("fail-fast", "...", "completed ccc"),
            ("fail-fast", "roc", "completed ccc"),
            ("continue", "h5u", "completed ccc"),
            ("retry", "jpb", "completed ccc"),
            ("fail-fast", "d..", "completed ccc"),
        ],
    ),
    (
        "strict",
        "fail-fast",
        "completed skipped",
        [
            ("fail-fast", "..p", "completed ccc"),
            ("fail-fast", ".H.", "failed cfx"),
            ("fail-fast", "...", "cancelled ---"),
            ("fail-fast", "...", "cancelled ---"),
            ("fail-fast", "...", "cancelled ---"),
        ],
    ),
    (
        "lenient",
        "continue",
        "completed partial",
        [
            ("fail-fast", "p..", "completed ccc"),
            ("fail-fast", ".C.", "skipped cfx"),
            ("fail-fast", "M..", "skipped fxx"),
            ("fail-fast", "..p", "completed ccc"),
            ("fail-fast", "..J", "skipped ccf"),
        ],
    ),
    (
        "tolerant",
        "fail-fast",
        "completed partial",
        [
            ("continue", ".H.", "completed csc"),
            ("continue", "Jp.", "completed scc"),
            ("continue", "..M", "completed ccs"),
            ("continue", "...", "completed ccc"),
            ("continue", "u.r", "completed ccc"),
        ],
    ),
    (
        "patient",
        "retry",
        "completed skipped",
        [
            ("fail-fast", "..p", "completed ccc"),
            ("fail-fast", "pH.", "failed cfx"),
            ("fail-fast", "...", "cancelled ---"),
            ("fail-fast", "...", "cancelled ---"),
            ("fail-fast", "...", "cancelled ---"),
        ],
    ),
    (
        "again",
        "retry",
        "completed success",
        [
            ("fail-fast", "p..", "completed ccc"),
            ("fail-fast", "..g", "completed ccc"),
            ("fail-fast", "...", "completed ccc"),
            ("fail-fast", "c.u", "completed ccc"),
            ("fail-fast", "..p", "completed ccc"),
        ],
    ),
    (
        "stubborn",
        "fail-fast",
        "completed success",
        [
            ("retry", ".G.", "completed ccc"),
            ("retry", "p.g", "completed ccc"),
            ("fail-fast", "...", "completed ccc"),
            ("fail-fast", "..o", "completed ccc"),
            ("fail-fast", "...", "completed ccc"),
        ],
    ),
    (
        "resigned",
        "continue",
        "completed partial",
        [
            ("retry", "H..", "skipped fxx"),
            ("fail-fast", ".p.", "completed ccc"),
            ("continue", "HMH", "skipped sss"),
            ("fail-fast", "...", "completed ccc"),
            ("fail-fast", "...", "completed ccc"),
        ],
    ),
    (
        "empty-handed",
        "continue",
        "completed skipped",
        [
            ("fail-fast", "H..", "skipped fxx"),
            ("fail-fast", "J..", "skipped fxx"),
            ("fail-fast", "M..", "skipped fxx"),
            ("fail-fast", ".H.", "skipped cfx"),
            ("fail-fast", "..H", "skipped ccf"),
        ],
    ),
    (
        "brisk",
        "fail-fast",
        "completed success",
        [
            ("fail-fast", "pbd", "completed ccc"),
            ("fail-fast", "ppp", "completed ccc"),
            ("fail-fast", "ooo", "completed ccc"),
            ("fail-fast", "rjr", "completed ccc"),
            ("fail-fast", "uju", "completed ccc"),
        ],
    ),
];

const SHORT_WAIT: &str = "0.05";

#[test]
fn ten_agents_of_mixed_modes_end_as_the_table_says_on_sqlite() {
    ends_as_the_table_says(&Scene::new(script(), recorder()));
}

#[test]
fn ten_agents_of_mixed_modes_end_as_the_table_says_on_postgresql_with_two_servers_and_two_workers() {
    ends_as_the_table_says(&Scene::of_many(script(), recorder(), ""));
}

fn ends_as_the_table_says(scene: &Scene) {
    let (run, ended) = scene.run(&plan());
    assert_eq!(ended.code, 0, "{ended}");
    let status = scene.home.status(&run);
    assert_eq!((&status["status"], &status["outcome"]), (&json!("completed"), &json!("partial")), "{status}");
    let tree = scene.tree(&run);
    let text = |path: &str, field: &str| tree.get(path).and_then(|it| it[field].as_str()).unwrap_or("-").to_owned();
    for (agent, _, end, tasks) in AGENTS {
        assert_eq!(format!("{} {}", text(agent, "status"), text(agent, "outcome")), end, "{agent}");
        for (number, (_, ways, end)) in tasks.iter().enumerate() {
            let task = format!("{agent}/t{number}");
            let steps = (0..3).map(|step| text(&format!("{task}/s{step}"), "status"));
            let steps: String = steps.map(|status| letter(&status)).collect();
            assert_eq!(format!("{} {steps}", text(&task, "status")), *end, "{task}: {ways}");
            for (step, (way, end)) in ways.chars().zip(end.rsplit(' ').next().unwrap().chars()).enumerate() {
                asked_as_often_as_it_may(scene, &format!("{agent}-t{number}-s{step}"), way, end);
            }
        }
    }
    scene.home.adds_up();
}

/// What has ended is not asked for again, however often its task or agent is tried.
fn asked_as_often_as_it_may(scene: &Scene, name: &str, way: char, end: char) {
    let expected = match (end, way) {
        ('x' | '-', _) => vec![0],
        (_, 'p' | 'M') => vec![1],
        (_, 'b' | 'd') => vec![2],
        (_, 'j') => vec![1, 1],
        ('c', 'r' | 'o' | '5' | 'c' | 'h' | 'g') => vec![2],
        ('c', 'G') => vec![3],
        ('c', _) => vec![1],
        _ => return,
    };
    let is_http = "pbdM".contains(way);
    for (turn, times) in expected.iter().enumerate() {
        let asked = if is_http { scene.recorder.count(&format!("/{name}")) } else { scene.model.count(name, turn + 1) };
        assert_eq!(asked, *times, "{name} ({way}), turn {}", turn + 1);
    }
}

fn letter(status: &str) -> char {
    match status {
        "completed" => 'c',
        "failed" => 'f',
        "skipped" => 's',
        "cancelled" => 'x',
        "-" => '-',
        other => panic!("a run that has ended has a step that is {other}"),
    }
}

/// Every step, by its name.
fn steps() -> impl Iterator<Item = (String, char)> {
    AGENTS.iter().flat_map(|(agent, _, _, tasks)| {
        tasks.iter().enumerate().flat_map(move |(task, (_, ways, _))| {
            ways.chars().enumerate().map(move |(step, way)| (format!("{agent}-t{task}-s{step}"), way))
        })
    })
}

fn script() -> Script {
    let good = || Reply::Json(json!({ "k": 1 }));
    let turns = |way: char| match way {
        'r' => vec![vec![Reply::RateLimited(SHORT_WAIT), good()]],
        'o' => vec![vec![Reply::Overloaded, good()]],
        '5' => vec![vec![Reply::Status(500, "oh"), good()]],
        'c' => vec![vec![Reply::CutOff, good()]],
        'h' => vec![vec![Reply::Hang, good()]],
        'u' => vec![vec![Reply::WithoutUsage(Box::new(good()))]],
        'j' => vec![vec![Reply::Text("{\"k\": ")], vec![good()]],
        'J' => vec![vec![Reply::Text("no JSON")]; 3],
        'H' => vec![vec![Reply::Html]],
        'C' => vec![vec![Reply::CutOff]],
        'g' => vec![vec![Reply::Html, good()]],
        'G' => vec![vec![Reply::Html, Reply::Html, good()]],
        _ => vec![vec![good()]],
    };
    steps().map(|(name, way)| (name, turns(way))).collect()
}

fn recorder() -> Recorder {
    let ways: std::collections::BTreeMap<String, char> = steps().map(|(name, way)| (format!("/{name}"), way)).collect();
    Recorder::answering(move |record, times| match (ways.get(&record.path), times) {
        (Some('b'), 1) => recorder::Reply::Busy(SHORT_WAIT),
        (Some('d'), 1) => recorder::Reply::Status(503, "not now"),
        (Some('M'), _) => recorder::Reply::Status(404, "nothing here"),
        _ => recorder::Reply::Json(json!({ "k": 1 })),
    })
}

fn plan() -> String {
    let output = json!({ "type": "object", "properties": { "k": { "type": "integer" } }, "required": ["k"] });
    let step = |name: String, number: usize, way: char| {
        if "pbdM".contains(way) {
            return json!({ "name": format!("s{number}"), "http": { "url": format!("RECORDER/{name}") } });
        }
        let mut llm = json!({ "prompt": format!("{name} now"), "output": output });
        if way == 'h' {
            llm["turn_timeout"] = json!("1s");
        }
        json!({ "name": format!("s{number}"), "llm": llm })
    };
    let agents = AGENTS.iter().map(|(agent, mode, _, tasks)| {
        let tasks = tasks.iter().enumerate().map(|(task, (mode, ways, _))| {
            let steps = ways.chars().enumerate();
            let steps: Vec<_> = steps.map(|(at, way)| step(format!("{agent}-t{task}-s{at}"), at, way)).collect();
            json!({ "name": format!("t{task}"), "failure_mode": mode, "steps": steps })
        });
        json!({ "name": agent, "failure_mode": mode, "tasks": tasks.collect::<Vec<_>>() })
    });
    let agents: Vec<_> = agents.collect();
    json!({ "type": "agents", "failure_mode": "continue", "replan": { "enabled": false }, "agents": agents })
        .to_string()
}
