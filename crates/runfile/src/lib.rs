//! Run files (`*.repl.yml`): their text, checked strictly and turned into a submission, for the command line and for the pages.
//! An unknown field is an error that names the file, the field and the nearest known one. Reads no file itself.

pub mod agents;
pub mod keys;

use plan::nearest::suggestion;
use plan::quantity;
use serde::Serialize;
use serde_yaml_ng::{Mapping, Value};
use wire::api::{CacheBody, CacheTermsBody, RetryBody, SandboxBody, SandboxTermsBody, Submit};
use wire::model::spec;

/// What each holds and means is in [`keys`]; a test compares.
const FIELDS: &[&str] = &[
    "type",
    "name",
    "commands",
    "env",
    "files",
    "working_dir",
    "resources",
    "provider",
    "region",
    "spot",
    "retry",
    "max_duration",
    "stop_duration",
    "hold",
    "priority",
    "secrets",
    "artifacts",
    "budget",
    "merge",
    "sandbox",
    "on_lost_control",
    "features",
    "init",
    "snapshot",
    "save_snapshot",
    "cache",
];
/// Words of run files that mean something elsewhere, so that a reader learns it is not a slip.
const NOT_HERE: &[&str] = &[
    "image",
    "nodes",
    "idle_duration",
    "spot_policy",
    "schedule",
    "checkpoint",
    "after",
    "port",
    "ports",
    "replicas",
    "volumes",
    "python",
    "shm_size",
];
/// Names that other tools, or our flags, have for a field.
const MEANT: &[(&[&str], &str)] = &[
    (&["command", "cmd", "script", "run", "entrypoint", "args"], "commands"),
    (&["workdir", "cwd", "dir"], "working_dir"),
    (&["timeout", "time_limit"], "max_duration"),
    (&["environment", "envs", "vars"], "env"),
    (&["retries", "attempts"], "retry"),
    (&["output", "outputs"], "artifacts"),
    (&["upload", "mounts"], "files"),
    (&["cpus"], "resources.cpu"),
    (&["mem", "ram"], "resources.memory"),
    (&["gpu", "gpus"], "resources.gpu"),
];
const RESOURCES: &[&str] = &["cpu", "memory", "disk", "gpu"];
const SANDBOX: &[&str] = &["network"];
const CACHE: &[&str] = &["salt", "errors"];
const RETRY: &[&str] = &["on_events", "max_attempts", "duration", "delay"];

/// What `[run]` in a settings file may say: the fields that are the same for many runs, and the flags that have other names.
const DEFAULTS: &[&str] = &[
    "env",
    "working_dir",
    "workdir",
    "resources",
    "cpu",
    "memory",
    "gpu",
    "provider",
    "providers",
    "region",
    "spot",
    "retry",
    "max_duration",
    "stop_duration",
    "hold",
    "priority",
    "artifacts",
    "budget",
    "merge",
    "on_lost_control",
];

/// What is wrong with a file, and how to write it instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    pub text: String,
    pub fix: Option<String>,
}

pub type Done<T> = Result<T, Wrong>;

impl Wrong {
    pub fn new(text: impl Into<String>) -> Wrong {
        Wrong { text: text.into(), fix: None }
    }
    fn fix(mut self, fix: impl Into<String>) -> Wrong {
        self.fix = Some(fix.into());
        self
    }
    /// A value that cannot be used. Readers of values say what is wrong and then `: write …`, which is the fix.
    fn value(what: &str, why: &str) -> Wrong {
        match why.split_once(": write ") {
            Some((why, fix)) => Wrong::new(format!("{what}: {why}")).fix(format!("write {fix}")),
            None => Wrong::new(format!("{what}: {why}")),
        }
    }
    /// The same, of this file.
    fn of(self, file: &str) -> Wrong {
        Wrong { text: format!("{file}: {}", self.text), ..self }
    }
}

/// A file of any type: the run, and the files that go with it as `PATH[:DEST]` seen from the file's own folder. `file` is what
/// problems call it; `env` is what a variable without a value is taken from.
pub fn read(file: &str, text: &str, env: &dyn Fn(&str) -> Option<String>) -> Done<(Submit, Vec<String>)> {
    if agents::is_one(text) {
        let (plan, files) = agents::read(file, text)?;
        return Ok((Submit { kind: Some("agents".to_owned()), plan: Some(plan), ..Submit::default() }, files));
    }
    parse(text, env).map_err(|wrong| wrong.of(file))
}

/// The text of a file that says this, with its fields in the order of the manual. It has no character that changes how the text around
/// it reads: a field with one is JSON, which is YAML too, with that character escaped.
pub fn written(definition: &serde_json::Value) -> String {
    let Some(fields) = definition.as_object() else { return serde_yaml_ng::to_string(definition).unwrap_or_default() };
    let place = |name: &str| FIELDS.iter().position(|field| *field == name).unwrap_or(FIELDS.len());
    let mut fields: Vec<_> = fields.iter().collect();
    fields.sort_by_key(|(name, _)| place(name));
    let one = |(name, value): (&String, &serde_json::Value)| {
        let mut map = Mapping::new();
        map.insert(Value::String(name.clone()), serde_yaml_ng::to_value(value).unwrap_or_default());
        let text = serde_yaml_ng::to_string(&map).unwrap_or_default();
        if text.contains(misleads) { format!("{}: {}\n", escaped(&name.as_str().into()), escaped(value)) } else { text }
    };
    fields.into_iter().map(one).collect()
}

/// Not visible, or turns the order of the letters around it.
fn misleads(c: char) -> bool {
    c.is_control() && c != '\n'
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// As JSON. Such characters stand only in its strings, where an escape means the same.
fn escaped(value: &serde_json::Value) -> String {
    let json = value.to_string();
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match misleads(c) {
            true => text.extend(["\\u".to_owned(), format!("{:04x}", c as u32)]),
            false => text.push(c),
        }
    }
    text
}

/// Whether a text says that it is a run file.
pub fn is_one(text: &str) -> bool {
    let parsed: Result<Value, _> = serde_yaml_ng::from_str(text);
    parsed.is_ok_and(|value| value.get("type").is_some())
}

pub fn parse(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Done<(Submit, Vec<String>)> {
    let value: Value = serde_yaml_ng::from_str(text).map_err(|error| Wrong::new(format!("not YAML: {error}")))?;
    let Value::Mapping(map) = value else {
        return Err(Wrong::new("a run file is a list of `field: value`").fix("begin with `type: task`"));
    };
    let fields = Fields::of(&map, "", FIELDS)?;
    let mut submit = Submit {
        kind: Some(kind(&fields)?),
        name: fields.read("name", name)?,
        commands: fields.texts("commands")?,
        secrets: fields.texts("secrets")?,
        artifacts: fields.texts("artifacts")?,
        working_dir: fields.text("working_dir")?,
        provider: fields.text("provider")?,
        region: fields.text("region")?,
        spot: fields.flag("spot")?,
        max_duration_ms: fields.read("max_duration", quantity::duration)?,
        stop_duration_ms: fields.read("stop_duration", quantity::duration)?,
        hold_ms: fields.read("hold", quantity::duration)?,
        budget: fields.read("budget", quantity::credits)?,
        priority: fields.one_of("priority", &["high", "normal"])?,
        on_lost_control: fields.one_of("on_lost_control", &["finish", "stop"])?,
        merge: fields.flag("merge")?,
        sandbox: sandbox(&fields)?,
        cache: cache(&fields)?,
        init: fields.text("init")?,
        features: fields.texts("features")?,
        snapshot: fields.text("snapshot")?,
        save_snapshot: fields.flag("save_snapshot")?,
        retry: retry(&fields)?,
        ..Submit::default()
    };
    if let Some(resources) = fields.inner("resources", RESOURCES)? {
        submit.resources.cpu_milli = resources.read("cpu", quantity::cpu)?;
        submit.resources.memory_bytes = resources.read("memory", quantity::memory)?;
        submit.resources.disk_bytes = resources.read("disk", quantity::memory)?;
        submit.resources.gpu = resources.read("gpu", quantity::gpu)?;
    }
    variables(&fields, env, &mut submit)?;
    Ok((submit, fields.texts("files")?))
}

/// `[run]` of a settings file. `env` is what a variable without a value is taken from; without it (a project's file) each
/// needs its value: a project must not read variables from its users' environments.
pub fn defaults(table: &impl Serialize, env: Option<&dyn Fn(&str) -> Option<String>>) -> Done<Submit> {
    let Ok(Value::Mapping(map)) = serde_yaml_ng::to_value(table) else {
        return Err(Wrong::new("`run` must be a table of defaults, e.g. [run] max_duration = \"2h\""));
    };
    for said in map.keys().filter_map(Value::as_str) {
        if !DEFAULTS.contains(&said) && FIELDS.contains(&said) {
            return Err(Wrong::new(format!("`run.{said}` cannot be a default"))
                .fix("say it for each run: in its run file, or by a flag"));
        }
    }
    let fields = Fields::of(&map, "run", DEFAULTS)?;
    let mut submit = Submit {
        artifacts: fields.texts("artifacts")?,
        working_dir: fields.text("working_dir")?.or(fields.text("workdir")?),
        provider: fields.text("provider")?,
        providers: fields.texts("providers")?,
        region: fields.text("region")?,
        spot: fields.flag("spot")?,
        max_duration_ms: fields.read("max_duration", quantity::duration)?,
        stop_duration_ms: fields.read("stop_duration", quantity::duration)?,
        hold_ms: fields.read("hold", quantity::duration)?,
        budget: fields.read("budget", quantity::credits)?,
        priority: fields.one_of("priority", &["high", "normal"])?,
        on_lost_control: fields.one_of("on_lost_control", &["finish", "stop"])?,
        merge: fields.flag("merge")?,
        retry: retry(&fields)?,
        ..Submit::default()
    };
    submit.resources.cpu_milli = fields.read("cpu", quantity::cpu)?;
    submit.resources.memory_bytes = fields.read("memory", quantity::memory)?;
    submit.resources.gpu = fields.read("gpu", quantity::gpu)?;
    if submit.provider.is_some() && !submit.providers.is_empty() {
        return Err(Wrong::new("`run.provider` and `run.providers` both say where runs go").fix("keep one of them"));
    }
    if let Some(resources) = fields.inner("resources", RESOURCES)? {
        submit.resources.cpu_milli = resources.read("cpu", quantity::cpu)?.or(submit.resources.cpu_milli);
        submit.resources.memory_bytes = resources.read("memory", quantity::memory)?.or(submit.resources.memory_bytes);
        submit.resources.disk_bytes = resources.read("disk", quantity::memory)?;
        submit.resources.gpu = resources.read("gpu", quantity::gpu)?.or(submit.resources.gpu);
    }
    match env {
        Some(env) => variables(&fields, env, &mut submit)?,
        None => variables(&fields, &|_| None, &mut submit)?,
    }
    Ok(submit)
}

/// Fills what is not set from the defaults. A list or a number that is set replaces the default; variables are
/// added one by one.
pub fn fill(submit: &mut Submit, defaults: &Submit) {
    fn or<T: Clone>(field: &mut Option<T>, default: &Option<T>) {
        if field.is_none() {
            field.clone_from(default);
        }
    }
    for (name, value) in &defaults.env {
        submit.env.entry(name.clone()).or_insert_with(|| value.clone());
    }
    if submit.artifacts.is_empty() {
        submit.artifacts.clone_from(&defaults.artifacts);
    }
    or(&mut submit.working_dir, &defaults.working_dir);
    or(&mut submit.resources.cpu_milli, &defaults.resources.cpu_milli);
    or(&mut submit.resources.memory_bytes, &defaults.resources.memory_bytes);
    or(&mut submit.resources.disk_bytes, &defaults.resources.disk_bytes);
    or(&mut submit.resources.gpu, &defaults.resources.gpu);
    if submit.provider.is_none() && submit.providers.is_empty() {
        submit.providers.clone_from(&defaults.providers);
        submit.provider.clone_from(&defaults.provider);
    }
    submit.spot |= defaults.spot;
    or(&mut submit.region, &defaults.region);
    or(&mut submit.max_duration_ms, &defaults.max_duration_ms);
    or(&mut submit.stop_duration_ms, &defaults.stop_duration_ms);
    or(&mut submit.hold_ms, &defaults.hold_ms);
    or(&mut submit.budget, &defaults.budget);
    or(&mut submit.priority, &defaults.priority);
    or(&mut submit.on_lost_control, &defaults.on_lost_control);
    or(&mut submit.retry, &defaults.retry);
    submit.merge |= defaults.merge;
}

fn kind(fields: &Fields<'_>) -> Done<String> {
    match fields.text("type")?.as_deref() {
        Some(kind @ ("task" | "external")) => Ok(kind.to_owned()),
        Some(kind @ ("service" | "dev-environment" | "agents")) => {
            Err(Wrong::new(format!("`type: {kind}` cannot be run by this version")).fix("use `type: task`"))
        }
        Some(kind) => Err(Wrong::new(format!("unknown type `{kind}`")).fix("use `type: task`")),
        None => Err(Wrong::new("`type` is missing").fix("begin with `type: task`")),
    }
}

/// `sandbox: true`, `false`, or its network.
fn sandbox(fields: &Fields<'_>) -> Done<Option<SandboxBody>> {
    match fields.get("sandbox") {
        None => Ok(None),
        Some(Value::Bool(asked)) => Ok(Some(SandboxBody::Flag(*asked))),
        Some(Value::Mapping(_)) => {
            let Some(terms) = fields.inner("sandbox", SANDBOX)? else { return Ok(None) };
            let network = terms.one_of("network", &["host", "none"])?.unwrap_or_else(|| "host".to_owned());
            Ok(Some(SandboxBody::Terms(SandboxTermsBody { network })))
        }
        Some(_) => {
            let why = "must be true, false or a map";
            Err(fields.wrong("sandbox", why).fix("write `sandbox: true`, or `sandbox: {network: none}`"))
        }
    }
}

/// `cache: true`, `false`, or its salt.
fn cache(fields: &Fields<'_>) -> Done<Option<CacheBody>> {
    match fields.get("cache") {
        None => Ok(None),
        Some(Value::Bool(asked)) => Ok(Some(CacheBody::Flag(*asked))),
        Some(Value::Mapping(_)) => {
            let Some(terms) = fields.inner("cache", CACHE)? else { return Ok(None) };
            let salt = terms.text("salt")?.unwrap_or_default();
            Ok(Some(CacheBody::Terms(CacheTermsBody { salt, errors: terms.flag("errors")? })))
        }
        Some(_) => {
            let why = "must be true, false or a map";
            Err(fields.wrong("cache", why).fix("write `cache: true`, or `cache: {salt: v2}`"))
        }
    }
}

/// `retry: 3`, or the policy in full.
fn retry(fields: &Fields<'_>) -> Done<Option<RetryBody>> {
    if let Some(value) = fields.get("retry").filter(|value| scalar(value).is_some()) {
        let said = scalar(value).unwrap_or_default();
        let attempts = match value {
            Value::Number(_) => quantity::attempts(&said),
            _ => Err(format!("`{said}` is not a number of attempts")),
        };
        let fix = "write it like `retry: 3`, or `retry: {max_attempts: 3, on_events: [error]}`";
        return Ok(Some(retry_on_error(attempts.map_err(|why| fields.wrong("retry", &why).fix(fix))?)));
    }
    let Some(policy) = fields.inner("retry", RETRY)? else { return Ok(None) };
    let on_events = policy.texts("on_events")?;
    let known = ["error", "no-capacity", "interruption"];
    for event in &on_events {
        if !known.contains(&event.as_str()) {
            return Err(policy.wrong("on_events", &format!("unknown event `{event}`")).fix(suggestion(event, &known)));
        }
    }
    Ok(Some(RetryBody {
        max_attempts: policy
            .read("max_attempts", quantity::attempts)?
            .unwrap_or(wire::model::spec::DEFAULT_MAX_ATTEMPTS),
        on_events: if on_events.is_empty() { known.map(str::to_owned).to_vec() } else { on_events },
        duration_ms: policy.read("duration", quantity::duration)?,
        delay_ms: policy.read("delay", quantity::duration)?,
    }))
}

fn name(text: &str) -> Result<String, String> {
    if spec::is_name(text) { Ok(text.to_owned()) } else { Err(format!("`{text}` {}", spec::NAME_RULE)) }
}

/// What `--retry N` means: N attempts, the first included, after errors and interruptions.
pub fn retry_on_error(max_attempts: i64) -> RetryBody {
    let on_events = vec!["error".to_owned(), "interruption".to_owned()];
    RetryBody { max_attempts, on_events, duration_ms: None, delay_ms: None }
}

/// A mapping, or a list of `K=V` and `K`.
fn variables(fields: &Fields<'_>, env: &dyn Fn(&str) -> Option<String>, submit: &mut Submit) -> Done<()> {
    if let Some(Value::Mapping(map)) = fields.get("env") {
        for (name, value) in map {
            let name = scalar(name).ok_or_else(|| fields.wrong("env", "a name must be a text"))?;
            let value =
                scalar(value).ok_or_else(|| fields.wrong("env", &format!("the value of `{name}` must be a text")))?;
            variable(fields, &name)?;
            submit.env.insert(name, value);
        }
        return Ok(());
    }
    for entry in fields.texts("env")? {
        variable(fields, entry.split('=').next().unwrap_or_default())?;
        let (name, value) = quantity::variable(&entry, env).map_err(|why| fields.wrong("env", &why))?;
        submit.env.insert(name, value);
    }
    Ok(())
}

/// Checked here too, so that the name is refused where it is written.
fn variable(fields: &Fields<'_>, name: &str) -> Done<()> {
    spec::check_variable(name).map_err(|why| fields.wrong("env", &why))
}

/// A mapping whose names have been checked, and where it stands.
struct Fields<'a> {
    map: &'a Mapping,
    at: &'a str,
}

impl<'a> Fields<'a> {
    fn of(map: &'a Mapping, at: &'a str, known: &[&str]) -> Done<Fields<'a>> {
        let fields = Fields { map, at };
        for name in map.keys() {
            let Some(name) = name.as_str() else {
                return Err(Wrong::new(format!("`{}` is not a field", scalar(name).unwrap_or_default())));
            };
            if known.contains(&name) {
                continue;
            }
            let complaint = Wrong::new(format!("unknown field `{}`", fields.name(name)));
            return Err(if NOT_HERE.contains(&name) {
                Wrong::new(format!("`{}` cannot be used in this version", fields.name(name))).fix("leave it out")
            } else {
                complaint.fix(fields.instead(name, known))
            });
        }
        Ok(fields)
    }

    fn name(&self, field: &str) -> String {
        if self.at.is_empty() { field.to_owned() } else { format!("{}.{field}", self.at) }
    }

    fn wrong(&self, field: &str, why: &str) -> Wrong {
        Wrong::value(&format!("`{}`", self.name(field)), why)
    }

    /// What was meant by a field that is not known here: one that belongs below another, one with another name, or a near one.
    fn instead(&self, name: &str, known: &[&str]) -> String {
        if known == FIELDS {
            for (place, inner, example) in [
                ("resources", RESOURCES, "resources: {cpu: 2, memory: 4GB}"),
                ("retry", RETRY, "retry: {max_attempts: 3}"),
                ("sandbox", SANDBOX, "sandbox: {network: none}"),
                ("cache", CACHE, "cache: {salt: v2}"),
            ] {
                if inner.contains(&name) {
                    return format!("write it below `{place}:`, like `{example}`");
                }
            }
        }
        let meant = MEANT.iter().find(|(names, _)| names.contains(&name)).map(|(_, meant)| *meant);
        match meant.and_then(|meant| meant.split_once('.').or(Some(("", meant)))) {
            Some(("", meant)) if known.contains(&meant) => format!("write `{meant}:` instead"),
            Some((place, meant)) if known.contains(&place) => format!("write `{meant}:` below `{place}:` instead"),
            _ => suggestion(name, known),
        }
    }

    /// `field:` with nothing behind it is as good as no field.
    fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    fn text(&self, field: &str) -> Done<Option<String>> {
        match self.get(field) {
            None => Ok(None),
            Some(value) => scalar(value).map(Some).ok_or_else(|| self.wrong(field, "must be a text: write one value")),
        }
    }

    fn texts(&self, field: &str) -> Done<Vec<String>> {
        match self.get(field) {
            None => Ok(Vec::new()),
            Some(Value::Sequence(list)) => {
                let texts: Option<Vec<String>> = list.iter().map(scalar).collect();
                texts.ok_or_else(|| {
                    self.wrong(
                        field,
                        "must be a list of texts: write quotes around what contains `: ` or begins with a sign",
                    )
                })
            }
            Some(value) => match scalar(value) {
                Some(text) => Ok(vec![text]),
                None => {
                    Err(self.wrong(field, &format!("must be a list of texts: write it like `{field}: [one, two]`")))
                }
            },
        }
    }

    fn read<T>(&self, field: &str, read: impl Fn(&str) -> Result<T, String>) -> Done<Option<T>> {
        self.text(field)?.map(|text| read(&text).map_err(|why| self.wrong(field, &why))).transpose()
    }

    fn one_of(&self, field: &str, known: &[&str]) -> Done<Option<String>> {
        let Some(word) = self.text(field)? else { return Ok(None) };
        if known.contains(&word.as_str()) {
            return Ok(Some(word));
        }
        Err(self.wrong(field, &format!("`{word}` is none of {}", known.join(", "))).fix(suggestion(&word, known)))
    }

    fn flag(&self, field: &str) -> Done<bool> {
        match self.get(field) {
            None => Ok(false),
            Some(Value::Bool(set)) => Ok(*set),
            Some(_) => Err(self.wrong(field, "must be true or false: write one of them, without quotes")),
        }
    }

    fn inner(&self, field: &'a str, known: &[&str]) -> Done<Option<Fields<'a>>> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Mapping(map)) => Fields::of(map, field, known).map(Some),
            Some(_) => {
                let example = format!("`{field}: {{{}: …}}`", known.first().copied().unwrap_or_default());
                Err(self.wrong(field, &format!("must contain fields ({}): write it like {example}", known.join(", "))))
            }
        }
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(set) => Some(set.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Done<(Submit, Vec<String>)> {
        parse(text, &|name| (name == "HERE").then(|| "yes".to_owned()))
    }

    #[test]
    fn a_task_reads_as_it_is_written() {
        let text = "type: task\nname: train\ncommands:\n  - python train.py\n  - echo done\nenv:\n  EPOCHS: 3\n  DEBUG: true\n\
            files: [train.py, 'data:input']\nresources: {cpu: 0.5, memory: 2GB, disk: 20GB}\nretry: 2\nmax_duration: 2h30m\n\
            budget: 0.25\npriority: high\nartifacts: out/*\nsecrets: [KEY]\nmerge: true\nhold: 1h\nregion:\n";
        let (submit, files) = parsed(text).unwrap();
        assert_eq!(submit.commands, ["python train.py", "echo done"]);
        assert_eq!((submit.env["EPOCHS"].as_str(), submit.env["DEBUG"].as_str()), ("3", "true"));
        assert_eq!(files, ["train.py", "data:input"]);
        assert_eq!((submit.resources.cpu_milli, submit.resources.memory_bytes), (Some(500), Some(2 << 30)));
        assert_eq!(submit.resources.disk_bytes, Some(20 << 30));
        assert_eq!(submit.retry.unwrap().max_attempts, 2);
        assert_eq!((submit.max_duration_ms, submit.hold_ms), (Some(9_000_000), Some(3_600_000)));
        assert_eq!((submit.budget.as_deref(), submit.priority.as_deref()), (Some("0.25"), Some("high")));
        assert_eq!((submit.artifacts, submit.secrets, submit.merge), (vec!["out/*".into()], vec!["KEY".into()], true));
    }

    #[test]
    fn what_is_written_is_read_the_same() {
        let text = "type: task\nname: '1'\ncommands:\n- \"echo 'a': b\"\nenv:\n  A: 'true'\n";
        let value: serde_json::Value = serde_yaml_ng::from_str(text).unwrap();
        let again = written(&value);
        assert!(again.starts_with("type: task\nname: "), "{again}");
        assert_eq!(serde_yaml_ng::from_str::<serde_json::Value>(&again).unwrap(), value);
        let turned =
            serde_json::json!({ "type": "task", "commands": ["echo '\u{202e}\u{200b}'\n\u{7f}"], "env": { "A": "1" } });
        let again = written(&turned);
        assert!(!again.contains(misleads) && again.contains("\\u202e") && again.contains("env:\n  A: "), "{again}");
        assert_eq!(serde_yaml_ng::from_str::<serde_json::Value>(&again).unwrap(), turned);
    }

    #[test]
    fn a_retry_policy_says_how_long_to_wait() {
        let (submit, _) = parsed("type: task\nretry: {max_attempts: 2, delay: 0s}").unwrap();
        let retry = submit.retry.unwrap();
        assert_eq!((retry.max_attempts, retry.delay_ms, retry.on_events.len()), (2, Some(0), 3));
    }

    #[test]
    fn variables_may_be_a_list() {
        let (submit, _) = parsed("type: task\nenv: [A=b, HERE]").unwrap();
        assert_eq!((submit.env["A"].as_str(), submit.env["HERE"].as_str()), ("b", "yes"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_fix() {
        let below = "write it below `resources:`, like `resources: {cpu: 2, memory: 4GB}`";
        let table = [
            ("type: task\ncomands: [x]", "unknown field `comands`", "did you mean `commands`?"),
            ("type: task\nresources: {memroy: 1GB}", "unknown field `resources.memroy`", "did you mean `memory`?"),
            ("type: service", "`type: service` cannot be run by this version", "use `type: task`"),
            ("type: tsk", "unknown type `tsk`", "use `type: task`"),
            ("commands: [x]", "`type` is missing", "begin with `type: task`"),
            ("type: task\nnodes: 2", "`nodes` cannot be used in this version", "leave it out"),
            (
                "type: task\nresources: {shm_size: 1}",
                "`resources.shm_size` cannot be used in this version",
                "leave it out",
            ),
            ("type: task\nresources: {gpo: 1}", "unknown field `resources.gpo`", "did you mean `gpu`?"),
            ("- x", "a run file is a list of `field: value`", "begin with `type: task`"),
            ("type: task\nmemory: 4GB", "unknown field `memory`", below),
            ("type: task\ncpu: 2", "unknown field `cpu`", below),
            (
                "type: task\nmax_attempts: 2",
                "unknown field `max_attempts`",
                "write it below `retry:`, like `retry: {max_attempts: 3}`",
            ),
            ("type: task\nworkdir: src", "unknown field `workdir`", "write `working_dir:` instead"),
            ("type: task\nmem: 2GB", "unknown field `mem`", "write `memory:` below `resources:` instead"),
            (
                "type: task\nretry: many",
                "`retry`: `many` is not a number of attempts",
                "write it like `retry: 3`, or `retry: {max_attempts: 3, on_events: [error]}`",
            ),
            ("type: task\nmax_duration: 90", "`max_duration`: `90` has no unit", "write it like 90s, 90m or 90h"),
            ("type: task\npriority: urgent", "`priority`: `urgent` is none of high, normal", "known: high, normal"),
            (
                "type: task\nresources: 5",
                "`resources`: must contain fields (cpu, memory, disk, gpu)",
                "write it like `resources: {cpu: …}`",
            ),
            (
                "type: task\nretry: {on_events: [eror]}",
                "`retry.on_events`: unknown event `eror`",
                "did you mean `error`?",
            ),
        ];
        for (text, said, fix) in table {
            let complaint = parsed(text).unwrap_err();
            assert_eq!((complaint.text.as_str(), complaint.fix.as_deref()), (said, Some(fix)), "{text}");
        }
        for text in [
            "type: task\nmax_duration: 5x",
            "type: task\nbudget: -1",
            "type: task\nmerge: yes please",
            "type: task\nenv: [GONE]",
            "type: task\ncommands: [{a: b}]",
            "type: [task",
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_field_is_described() {
        for (fields, keys) in [(FIELDS, keys::TASK), (RESOURCES, keys::RESOURCES), (RETRY, keys::RETRY)] {
            let mut described: Vec<&str> = keys.iter().map(|key| key.name).collect();
            let mut read = fields.to_vec();
            described.sort_unstable();
            read.sort_unstable();
            assert_eq!(described, read);
        }
    }

    #[test]
    fn defaults_fill_what_was_not_said() {
        let of = |text: &str, env: Option<&dyn Fn(&str) -> Option<String>>| {
            let table: toml::Table = text.parse().unwrap();
            defaults(&toml::Value::Table(table), env)
        };
        let here = |name: &str| (name == "HERE").then(|| "yes".to_owned());
        let text = "max_duration = '1h'\nretry = 2\nmemory = '2GB'\nresources = {cpu = 1.5}\nartifacts = ['a', 'b']\nenv = {A = 'd', B = 'd'}";
        let given = of(text, None).unwrap();
        let mut submit = Submit { artifacts: vec!["mine".into()], max_duration_ms: Some(5), ..Submit::default() };
        submit.env.insert("A".into(), "mine".into());
        fill(&mut submit, &given);
        assert_eq!((submit.artifacts, submit.max_duration_ms), (vec!["mine".to_owned()], Some(5)));
        assert_eq!((submit.env["A"].as_str(), submit.env["B"].as_str()), ("mine", "d"));
        assert_eq!((submit.resources.cpu_milli, submit.resources.memory_bytes), (Some(1500), Some(2 << 30)));
        assert_eq!(submit.retry.unwrap().max_attempts, 2);
        assert_eq!(of("env = ['HERE']", Some(&here)).unwrap().env["HERE"], "yes");
        for (text, said, fix) in [
            ("max_duraton = '1h'", "unknown field `run.max_duraton`", "did you mean `max_duration`?"),
            ("secrets = ['KEY']", "`run.secrets` cannot be a default", "say it for each run"),
            ("files = ['~/.ssh']", "`run.files` cannot be a default", "say it for each run"),
            ("env = ['AWS_SECRET_ACCESS_KEY']", "`run.env`: `AWS_SECRET_ACCESS_KEY` is not set here", ""),
        ] {
            let complaint = of(text, None).unwrap_err();
            assert!(complaint.text.starts_with(said), "{complaint:?}");
            assert!(complaint.fix.unwrap_or_default().starts_with(fix), "{text}");
        }
    }
}
