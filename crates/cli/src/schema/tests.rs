//! The schema, the reader and the stored documents say the same.

use super::*;

use std::path::{Path, PathBuf};

/// Whether the schema accepts a document.
struct Judge {
    schemas: boon::Schemas,
    index: boon::SchemaIndex,
}

impl Judge {
    fn new() -> Judge {
        let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
        compiler.add_resource("task.json", task()).unwrap();
        let index = compiler.compile("task.json", &mut schemas).unwrap();
        Judge { schemas, index }
    }

    fn accepts(&self, yaml: &str) -> bool {
        let document: Json = serde_yaml_ng::from_str(yaml).unwrap();
        self.schemas.validate(&document, self.index).is_ok()
    }
}

fn reads(yaml: &str) -> bool {
    // What is set where it is read is not for a schema to know.
    runfile::parse(yaml, &|_| Some("set".to_owned())).is_ok()
}

/// Values of every kind, right somewhere and wrong elsewhere.
const VALUES: &[&str] = &[
    "",
    "task",
    "external",
    "service",
    "train",
    "x y",
    "-x",
    "5",
    "0",
    "-1",
    "0.5",
    "2.5",
    "1000",
    "true",
    "'5'",
    "'0.5'",
    "'500m'",
    "5m",
    "2h30m",
    "30m2h",
    "90x",
    "1w2d3h4m5s6ms",
    "2GB",
    "2Gi",
    "512Mi",
    "1.5g",
    "2XB",
    "high",
    "urgent",
    "finish",
    "error",
    "[a, b]",
    "[5, true]",
    "[[a]]",
    "[{a: b}]",
    "[error]",
    "[eror]",
    "[no-capacity, interruption]",
    "[HERE]",
    "[A=b]",
    "[1A=b]",
    "[REPL_X=1]",
    "A=b",
    "{A: b}",
    "{A: 5, B_2: true}",
    "{1A: b}",
    "{REPL_X: 1}",
    "{A: [b]}",
    "{A: }",
    "{}",
    "[]",
    "{cpu: 2}",
    "{cpu: '250m', memory: 2Gi}",
    "{cpu: 0}",
    "{cpu: x}",
    "{memory: 5}",
    "{disk: 20GB}",
    "{disk: 5}",
    "{gpu: 1}",
    "{gpu: a100}",
    "{gpu: 'A100:2'}",
    "{gpu: 'a100:0'}",
    "{gpu: 65}",
    "{gpu: a/b}",
    "{cpu: , memory: }",
    "{max_attempts: 5}",
    "{max_attempts: '5'}",
    "{max_attempts: 0}",
    "{max_attempts: 101}",
    "{max_attempts: 2.5}",
    "{on_events: [error], duration: 6h}",
    "{on_events: error}",
    "{on_events: [x]}",
    "{duration: 6}",
    "{attempts: 2}",
];

#[test]
fn the_schema_accepts_what_the_reader_reads_and_nothing_else() {
    let judge = Judge::new();
    let mut differences = Vec::new();
    for key in TASK {
        for value in VALUES {
            let yaml = match key.value {
                Value::Type => format!("type: {value}"),
                _ => format!("type: task\n{}: {value}", key.name),
            };
            // The reader makes text of a number or a truth value; a schema looks at text only.
            let is_made_text =
                key.value == Value::Name && *value == "-1" || key.value == Value::Variables && *value == "true";
            if judge.accepts(&yaml) != reads(&yaml) && !is_made_text {
                differences.push(format!("{yaml}: schema {}, reader {}", judge.accepts(&yaml), reads(&yaml)));
            }
        }
    }
    for yaml in ["commands: [x]", "type: task\ncomands: [x]", "type: task\nnodes: 2", "- x", "type: [task]", "{}", "5"]
    {
        assert!(!judge.accepts(yaml) && !reads(yaml), "{yaml}");
    }
    assert_eq!(differences, Vec::<String>::new());
}

#[test]
fn every_key_is_read_and_its_example_is_right() {
    let judge = Judge::new();
    for key in TASK {
        let yaml = if key.value == Value::Type {
            "type: task".to_owned()
        } else {
            format!("type: task\n{}: {}", key.name, key.example)
        };
        assert!(judge.accepts(&yaml) && reads(&yaml), "{yaml}");
    }
    let run = crate::args::Line::command_of_run();
    let flags: Vec<String> = run
        .get_arguments()
        .flat_map(|arg| [arg.get_long().map(|it| format!("--{it}")), arg.get_short().map(|it| format!("-{it}"))])
        .flatten()
        .collect();
    for key in every_key() {
        assert!(
            key.flag.is_none_or(|flag| flags.iter().any(|it| it == flag)),
            "{} has no flag {:?}",
            key.name,
            key.flag
        );
    }
}

#[test]
fn the_examples_of_the_manual_are_accepted() {
    let judge = Judge::new();
    let mut seen = 0;
    for name in ["README.md", "docs/run-files.md"] {
        for yaml in examples(&std::fs::read_to_string(root().join(name)).unwrap()) {
            assert!(judge.accepts(&yaml), "{name}: the schema refuses\n{yaml}");
            assert!(reads(&yaml), "{name}: the reader refuses\n{yaml}");
            seen += 1;
        }
    }
    assert!(seen >= 3, "{seen} examples were found");
}

/// Blocks that are run files, and run files that a command writes.
fn examples(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line == "```yaml" {
            found.push(lines.by_ref().take_while(|line| *line != "```").collect::<Vec<_>>().join("\n"));
        } else if line.starts_with("$ cat > ") && line.contains(".yml <<") {
            let written = lines.by_ref().take_while(|line| *line != "> END");
            found.push(written.map(|line| line.strip_prefix("> ").unwrap_or("")).collect::<Vec<_>>().join("\n"));
        }
    }
    found
}

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn every_key() -> Vec<&'static Key> {
    let inner = |key: &'static Key| match key.value {
        Value::Inner(keys) | Value::Retry(keys) | Value::Sandbox(keys) | Value::Cache(keys) => {
            keys.iter().collect::<Vec<_>>()
        }
        _ => Vec::new(),
    };
    TASK.iter().flat_map(|key| std::iter::once(key).chain(inner(key))).collect()
}

/// Numbers that the descriptions of keys say in words.
#[test]
fn the_defaults_are_as_described() {
    use wire::model::spec;
    use wire::model::time::{MINUTE, SECOND};
    let holds = server::Config::default().holds;
    let default = |name: &str| every_key().into_iter().find(|key| key.name == name).unwrap().default;
    for (name, text, holds_true) in [
        ("max_duration", "24 h", spec::DEFAULT_MAX_DURATION_MS == 24 * 60 * MINUTE),
        ("stop_duration", "10 s", spec::DEFAULT_STOP_DURATION_MS == 10 * SECOND),
        ("hold", "5 min after success", holds.default_debug_hold_ms == 5 * MINUTE),
        ("hold", "15 min after a failure", holds.failure_debug_hold_ms == 15 * MINUTE),
        ("retry", "up to 3", spec::DEFAULT_MAX_ATTEMPTS == 3),
        ("max_attempts", "3", spec::DEFAULT_MAX_ATTEMPTS == 3),
    ] {
        assert!(default(name).contains(text) && holds_true, "{name}: {}", default(name));
    }
}

const HINT: &str = "run `UPDATE_DOCS=1 cargo nextest run -p cli the_manual_shows_the_code`";

#[test]
fn the_manual_shows_the_code() {
    let schema = serde_json::to_string_pretty(&task()).unwrap() + "\n";
    is_stored("docs/task.schema.json", &schema);
    is_stored("docs/agents.schema.json", &(serde_json::to_string_pretty(&plan::schema()).unwrap() + "\n"));
    let manual = std::fs::read_to_string(root().join("docs/run-files.md")).unwrap();
    is_stored("docs/run-files.md", &filled(&manual, &[("keys", table(TASK, "")), ("limits", limits())]));
}

/// A page with the parts in it that are made from the code.
pub(super) fn filled(manual: &str, parts: &[(&str, String)]) -> String {
    let mut expected = manual.to_owned();
    for (name, text) in parts {
        let (begin, end) = (format!("<!-- {name}: made from the code -->\n"), format!("<!-- end of {name} -->"));
        let (before, rest) = expected.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
        let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("no {end}"));
        expected = format!("{before}{begin}{text}{end}{after}");
    }
    expected
}

pub(super) fn is_stored(name: &str, expected: &str) {
    let path = root().join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, expected).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    let difference = stored.lines().zip(expected.lines()).find(|(one, other)| one != other);
    assert!(stored == expected, "{name} is out of date ({HINT}): {difference:?}");
}

fn table(keys: &[Key], below: &str) -> String {
    let mut text = String::new();
    if below.is_empty() {
        text.push_str("| key | value | without it | flag | meaning |\n|---|---|---|---|---|\n");
    }
    for key in keys {
        let flag = key.flag.map(|flag| format!("`{flag}`")).unwrap_or_default();
        let name = format!("{below}{}", key.name);
        text.push_str(&format!("| `{name}` | {} | {} | {flag} | {} |\n", kind(key.value), key.default, key.about));
        if let Value::Inner(inner) | Value::Retry(inner) | Value::Sandbox(inner) | Value::Cache(inner) = key.value {
            text.push_str(&table(inner, &format!("{name}.")));
        }
    }
    text
}

/// As the manual names it.
fn kind(value: Value) -> String {
    match value {
        Value::Type => {
            "`task` or `external`; runs of `agents` have [keys of their own](agents.md#every-key)".to_owned()
        }
        Value::Name => "name".to_owned(),
        Value::Text => "text".to_owned(),
        Value::Texts => "list of texts".to_owned(),
        Value::Variables => "map, or list of `NAME=value`".to_owned(),
        Value::Duration => "duration".to_owned(),
        Value::Memory => "size".to_owned(),
        Value::Cpu => "number".to_owned(),
        Value::Gpu => "`KIND[:N]`".to_owned(),
        Value::Credits => "credits".to_owned(),
        Value::OneOf(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or "),
        Value::SomeOf(words) => {
            format!("list of {}", words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "))
        }
        Value::Flag => "`true` or `false`".to_owned(),
        Value::Attempts => "whole number".to_owned(),
        Value::Retry(_) => "whole number, or map".to_owned(),
        Value::Sandbox(_) | Value::Cache(_) => "`true`, `false`, or map".to_owned(),
        Value::Inner(_) => "map".to_owned(),
    }
}

#[test]
fn every_setting_of_a_limit_is_in_the_table() {
    let config = serde_json::to_value(server::Config::default()).unwrap();
    let table = limits();
    for name in ["logs", "limits", "holds"] {
        let keys = config[name].as_object().unwrap();
        assert!(!keys.is_empty(), "[{name}]");
        // Nothing extends a hold by SSH yet.
        for key in keys.keys().filter(|key| !key.contains("ssh_extension")) {
            assert!(table.contains(&format!("`[{name}] {key}`")), "[{name}] {key} is not in the table of limits");
        }
    }
}

/// Bounds that need no row, with the reason.
const NO_ROW: &[(&str, &str)] = &[
    ("MAX_TITLE", "the title of a run in listings is cut there; nothing is refused"),
    ("MOST_CREDITS", "a bound of a setting, which its refusal names"),
];

/// A limit that is met without having been announced costs its reader a failed run.
#[test]
fn every_bound_of_a_run_has_a_row() {
    let own = std::fs::read_to_string(root().join("crates/cli/src/schema/tests.rs")).unwrap();
    let (_, table) = own.split_once("\nfn limits() -> String {").unwrap();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let named: Vec<&str> = table.split(|c| !is_word(c)).collect();
    let files = ["spec.rs", "spec/resources.rs", "tree.rs", "limits.rs"];
    let bounds = bounds_of(&files.map(|file| format!("crates/model/src/{file}")), "const ");
    assert!(bounds.len() > 15 && bounds.iter().any(|name| name == "DOCUMENT_BYTES"), "{bounds:?}");
    let silent: Vec<&String> = bounds
        .iter()
        .filter(|name| !named.contains(&name.as_str()) && NO_ROW.iter().all(|(exempt, _)| exempt != name))
        .collect();
    assert!(silent.is_empty(), "these have no row in `limits()`, and no reason in `NO_ROW`: {silent:?}");
    for (exempt, _) in NO_ROW {
        assert!(bounds.iter().any(|name| name == exempt) && !named.contains(exempt), "{exempt} needs no exemption");
    }
}

/// Constants of these files that are bounds by their names.
pub(super) fn bounds_of(files: &[String], keyword: &str) -> Vec<String> {
    let mut bounds = Vec::new();
    for file in files {
        for line in std::fs::read_to_string(root().join(file)).unwrap().lines() {
            let Some((_, rest)) = line.split_once(keyword) else { continue };
            let name = rest.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next().unwrap_or_default();
            if name.starts_with("MAX_") || name.starts_with("MOST_") || name.ends_with("_BYTES") {
                bounds.push(name.to_owned());
            }
        }
    }
    bounds
}

/// With a comma between thousands.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|it| std::str::from_utf8(it).unwrap()).collect();
    groups.join(",")
}

/// Exact where a unit would round.
pub(super) fn in_bytes(bytes: usize) -> String {
    match crate::show::size(bytes as i64).replace(".0 ", " ") {
        _ if !bytes.is_multiple_of(1024) => format!("{} bytes", count(bytes as u64)),
        text => text.replace("KB", "KiB").replace("MB", "MiB").replace("GB", "GiB"),
    }
}

fn limits() -> String {
    use wire::model::time::show_duration;
    use wire::model::{feature, hold, recovery, spec, tree};
    let server::Config { holds, timings, limits, logs, .. } = server::Config::default();
    let bytes = in_bytes;
    let rows: &[(&str, String, &str)] = &[
        ("commands, all together", bytes(spec::MAX_COMMAND_BYTES), ""),
        ("variables", spec::MAX_ENV.to_string(), ""),
        ("variables, all together", bytes(spec::MAX_ENV_BYTES), ""),
        ("a secret's value", bytes(wire::model::limits::MAX_SECRET_BYTES), ""),
        ("standard input (`-i`)", bytes(spec::MAX_STDIN_BYTES as usize), ""),
        ("files, folders and links that are sent", count(tree::MAX_ENTRIES), ""),
        ("the same with `--cache`, without folders that are not empty", count(tree::MAX_CACHED_FILES as u64), ""),
        ("folders below one another", count(tree::MAX_DEPTH as u64), ""),
        ("the name of a file or folder", bytes(tree::MAX_NAME_BYTES), ""),
        ("the target of a symbolic link", bytes(tree::MAX_TARGET_BYTES), ""),
        ("names and hashes of one folder, as a JSON document", bytes(tree::DOCUMENT_BYTES as usize), ""),
        ("one file that is sent or kept", bytes(tree::BLOB_BYTES as usize), ""),
        ("a plan, as a JSON document", bytes(plan::MAX_DOCUMENT_BYTES), ""),
        ("the end of a step as its program reports it", bytes(server::COMPLETION_BYTES), ""),
        ("the body of any other request", bytes(server::BODY_BYTES), ""),
        ("a pattern of `artifacts`, `working_dir`, the place of a file", bytes(spec::MAX_PATH_BYTES), ""),
        ("files and folders of the workdir that are searched for artifacts", count(runner::SEARCHED_FILES as u64), ""),
        ("`providers`", server::MAX_PROVIDERS.to_string(), ""),
        ("`nodes`", count(spec::MAX_NODES as u64), ""),
        ("`init`", bytes(spec::MAX_INIT_BYTES), ""),
        ("`features`", feature::MAX_FEATURES.to_string(), ""),
        ("`cache.salt`", bytes(spec::MAX_SALT_BYTES), ""),
        ("GPUs of a run", spec::MAX_GPUS.to_string(), ""),
        ("memory, if it is limited", format!("at least {}", bytes(spec::MIN_MEMORY_BYTES as usize)), ""),
        ("attempts", format!("1 to {}", spec::MAX_ATTEMPTS), ""),
        (
            "pause between attempts",
            format!(
                "{}, doubling, at most {}",
                show_duration(recovery::BASE_DELAY_MS),
                show_duration(recovery::MAX_DELAY_MS)
            ),
            "",
        ),
        ("`retry.delay`", format!("at most {}", show_duration(recovery::MAX_RETRY_DELAY_MS)), ""),
        ("`hold`", format!("at most {}", show_duration(hold::MAX_HOLD_MS)), ""),
        (
            "duration of an attempt, unless `max_duration` says otherwise",
            show_duration(spec::DEFAULT_MAX_DURATION_MS),
            "",
        ),
        (
            "from SIGTERM to SIGKILL, unless `stop_duration` says otherwise",
            show_duration(spec::DEFAULT_STOP_DURATION_MS),
            "",
        ),
        ("waiting for a machine", show_duration(limits.pending_ms), "`[limits] pending_ms`"),
        ("start of a machine", show_duration(limits.boot_ms), "`[limits] boot_ms`"),
        ("files on their way to the machine", show_duration(limits.sync_ms), "`[limits] sync_ms`"),
        ("paused; then the run is cancelled", show_duration(limits.paused_ms), "`[limits] paused_ms`"),
        ("from `repl resume` until the run goes on", show_duration(limits.resuming_ms), "`[limits] resuming_ms`"),
        ("confirmation that a stopped run's processes are gone", show_duration(limits.fence_ms), "`[limits] fence_ms`"),
        (
            "`max_duration` of a run that its machine did not end",
            format!("{} later", show_duration(limits.max_duration_grace_ms)),
            "`[limits] max_duration_grace_ms`",
        ),
        (
            "the same while the machine is silent, if it works to the end by itself",
            format!("{} later", show_duration(limits.silent_grace_ms)),
            "`[limits] silent_grace_ms`",
        ),
        (
            "credits below which nothing is tried again by itself",
            limits.min_credits_to_retry.to_string(),
            "`[limits] min_credits_to_retry`",
        ),
        ("a log stays in the database after the run's end", show_duration(logs.hot_ms), "`[logs] hot_ms`"),
        ("a log is kept after the run's end", show_duration(logs.keep_ms), "`[logs] keep_ms`"),
        ("artifacts of a run, in sum", bytes(server::ARTIFACT_BYTES as usize), ""),
        ("artifacts are kept", show_duration(timings.artifacts_kept_ms), "`[timings] artifacts_kept_ms`"),
        (
            "files that no run has used are kept",
            show_duration(timings.contents_kept_ms),
            "`[timings] contents_kept_ms`",
        ),
        ("hold after success", show_duration(holds.default_debug_hold_ms), "`[holds] default_debug_hold_ms`"),
        ("hold after a failure", show_duration(holds.failure_debug_hold_ms), "`[holds] failure_debug_hold_ms`"),
        (
            "hold of a slot that failed around its command",
            if holds.hold_on_failure { "as after a failure" } else { "none" }.to_owned(),
            "`[holds] hold_on_failure`",
        ),
        (
            "`repl extend` without a duration",
            show_duration(holds.explicit_extension_ms),
            "`[holds] explicit_extension_ms`",
        ),
        (
            "`repl extend` without a duration, in all",
            show_duration(holds.max_explicit_extension_ms),
            "`[holds] max_explicit_extension_ms`",
        ),
        ("hold in all", show_duration(holds.absolute_max_debug_hold_ms), "`[holds] absolute_max_debug_hold_ms`"),
        ("a machine without work stays", show_duration(timings.idle_duration_ms), "`[timings] idle_duration_ms`"),
    ];
    let lines = rows.iter().map(|(what, value, setting)| format!("| {what} | {value} | {setting} |\n"));
    format!("| what | limit | setting |\n|---|---|---|\n{}", lines.collect::<String>())
}
