//! Run files of `type: agents`: the text as JSON for the checks of `plan`, with the line and column of each place, so that a problem is shown
//! where it stands in the file.

use crate::{Done, Wrong};
use plan::problem::step_of_path;
use plan::{Checked, MAX_DOCUMENT_BYTES, Problem};
use saphyr_parser::{Event, Marker, Parser};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// A place in a file, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl From<Marker> for Position {
    fn from(marker: Marker) -> Position {
        Position { line: marker.line(), column: marker.col() + 1 }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Where each value stands, by its path (`agents[0].tasks[1].depends_on`). A field stands where its name does.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Positions {
    places: BTreeMap<String, Position>,
}

impl Positions {
    /// The place itself, or the nearest one around it that is written in the file: a problem may be about what is missing.
    pub fn of(&self, path: &str) -> Option<Position> {
        let mut path = path;
        loop {
            match (self.places.get(path), path.rfind(['.', '['])) {
                (Some(position), _) => return Some(*position),
                (None, Some(end)) => path = &path[..end],
                (None, None) => return self.places.get("").copied(),
            }
        }
    }
}

/// The file's text as a value, and where its parts stand.
pub fn parse(text: &str) -> Result<(Value, Positions), String> {
    if text.len() > MAX_DOCUMENT_BYTES {
        return Err(format!("larger than {MAX_DOCUMENT_BYTES} bytes"));
    }
    let value = serde_yaml_ng::from_str(text).map_err(|error| format!("not YAML: {error}"))?;
    Ok((value, positions(text)?))
}

/// Whether the file says so. A text that is no YAML is of no type.
pub fn is_one(text: &str) -> bool {
    let value: Result<serde_yaml_ng::Value, _> = serde_yaml_ng::from_str(text);
    value.is_ok_and(|value| value.get("type").and_then(serde_yaml_ng::Value::as_str) == Some("agents"))
}

/// The plan as the server takes it, and the files that go with it. What `--input` may still bring is checked when it is there.
pub fn read(file: &str, text: &str) -> Done<(Value, Vec<String>)> {
    let (value, _) = parse(text).map_err(|why| Wrong::new(why).of(file))?;
    let listed = value["files"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let files = listed.map(str::to_owned).collect();
    Ok((value, files))
}

/// `--input NAME=VALUE`. A value is text where the file's own is; otherwise it is read as JSON, and is text if it is none.
pub fn give_input(plan: &mut Value, entry: &str) -> Done<()> {
    let Some((name, text)) = entry.split_once('=').filter(|(name, _)| !name.is_empty()) else {
        return Err(Wrong::new(format!("--input: `{entry}` is not NAME=VALUE")).fix("write it like --input topic=wind"));
    };
    let Some(fields) = plan.as_object_mut() else { return Ok(()) };
    let inputs = fields.entry("inputs").or_insert_with(|| serde_json::json!({}));
    let Some(inputs) = inputs.as_object_mut() else { return Ok(()) };
    let is_text = inputs.get(name).is_some_and(Value::is_string);
    let value = if is_text { None } else { serde_json::from_str(text).ok() };
    inputs.insert(name.to_owned(), value.unwrap_or_else(|| text.into()));
    Ok(())
}

/// Checks the plan of this file, perhaps with inputs that were given beside it, and shows each problem where it stands in the file.
pub fn check(file: &str, text: &str, plan: &Value) -> Done<Checked> {
    let positions = positions(text).map_err(|why| Wrong::new(why).of(file))?;
    judged(file, plan, &positions)
}

/// Every problem in a line of its own, as `FILE:LINE:COLUMN: PLACE: WHY: WHAT TO WRITE`.
fn judged(file: &str, value: &Value, positions: &Positions) -> Done<Checked> {
    plan::check(value).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(|problem| located(file, problem, positions)).collect();
        Wrong::new(match &lines[..] {
            [line] => line.clone(),
            lines => format!("{file}: {} problems\n  {}", lines.len(), lines.join("\n  ")),
        })
    })
}

fn located(file: &str, problem: &Problem, positions: &Positions) -> String {
    match positions.of(&problem.path) {
        Some(position) => format!("{file}:{position}: {problem}"),
        None => format!("{file}: {problem}"),
    }
}

/// A list or a mapping that is open while the file is read.
enum Open {
    List {
        path: String,
        next: usize,
    },
    /// `key` is set between a name and its value.
    Map {
        path: String,
        key: Option<String>,
    },
}

/// Reads the events of the parser, which carry positions; the values are those of `serde_yaml_ng`. A name that stands twice is an error here,
/// because JSON would keep the last one silently.
fn positions(text: &str) -> Result<Positions, String> {
    let mut positions = Positions::default();
    let mut open: Vec<Open> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| format!("not YAML: {error}"))?;
        let at = Position::from(span.start);
        if let Event::Scalar(name, ..) = &event
            && let Some(Open::Map { path, key: key @ None }) = open.last_mut()
        {
            let place = continued(path, name);
            if positions.places.insert(place, at).is_some() {
                return Err(format!("{at}: `{name}` is written twice"));
            }
            *key = Some(name.to_string());
            continue;
        }
        match event {
            Event::Scalar(..) | Event::Alias(_) => {
                begun(&mut open, &mut positions, at);
            }
            Event::SequenceStart(..) => {
                let path = begun(&mut open, &mut positions, at);
                open.push(Open::List { path, next: 0 });
            }
            Event::MappingStart(..) => {
                let path = begun(&mut open, &mut positions, at);
                open.push(Open::Map { path, key: None });
            }
            Event::SequenceEnd | Event::MappingEnd => {
                open.pop();
            }
            _ => {}
        }
    }
    Ok(positions)
}

/// The path of the value that begins here. A field keeps the position of its name.
fn begun(open: &mut [Open], positions: &mut Positions, at: Position) -> String {
    let path = match open.last_mut() {
        None => String::new(),
        Some(Open::List { path, next }) => {
            *next += 1;
            format!("{path}[{}]", *next - 1)
        }
        Some(Open::Map { path, key }) => match key.take() {
            Some(name) => continued(path, &name),
            // A name that is itself a list or a mapping: no place of a document is below it.
            None => format!("{path}.?"),
        },
    };
    positions.places.entry(path.clone()).or_insert(at);
    path
}

fn continued(path: &str, name: &str) -> String {
    format!("{path}{}", step_of_path(if path.is_empty() { "" } else { "." }, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FILE: &str = "\
type: agents
inputs: {topic: solar}
agents:
  - name: research
    parallelism: dag
    tasks:
      - name: sources
        steps:
          - name: page
            http: {url: \"https://data.example/\", query: {q: \"${{ inputs.topic }}\"}}
      - name: digest
        depends_on: [sorces]
        steps: [{llm: {prompt: p}}]
";

    fn checked(text: &str) -> Done<Checked> {
        check("market.repl.yml", text, &parse(text).map_err(Wrong::new)?.0)
    }

    fn said(text: &str) -> String {
        checked(text).unwrap_err().text
    }

    #[test]
    fn a_problem_is_shown_where_it_stands_in_the_file() {
        assert_eq!(
            said(FILE),
            "market.repl.yml:12:9: agents[0].tasks[1].depends_on: no task is called `sorces`: did you mean `sources`?"
        );
        let inner = FILE.replace("sorces", "sources").replace("inputs.topic }}", "inputs.topik }}");
        assert_eq!(
            said(&inner),
            "market.repl.yml:10:58: agents[0].tasks[0].steps[0].http.query.q: no input is called `topik`: did you mean `topic`?"
        );
        assert!(checked(&FILE.replace("sorces", "sources")).is_ok());
    }

    #[test]
    fn several_problems_have_a_line_each() {
        let two = FILE.replace("prompt: p", "promt: p");
        assert_eq!(
            said(&two),
            "market.repl.yml: 3 problems\n  \
             market.repl.yml:13:24: agents[0].tasks[1].steps[0].llm.promt: `llm` has no field `promt`: did you mean `prompt`?\n  \
             market.repl.yml:13:18: agents[0].tasks[1].steps[0].llm: `llm` needs `prompt`\n  \
             market.repl.yml:12:9: agents[0].tasks[1].depends_on: no task is called `sorces`: did you mean `sources`?"
        );
    }

    #[test]
    fn what_is_missing_is_shown_where_it_would_stand() {
        assert_eq!(said("type: agents\n"), "market.repl.yml:1:1: a plan needs one of agents, goal");
        assert!(said("\n- x\n").starts_with("market.repl.yml:2:1: a plan is an object"));
        let task = "type: agents\nagents:\n- tasks:\n  - name: t\n";
        assert_eq!(said(task), "market.repl.yml:4:5: agents[0].tasks[0]: a task needs `steps`");
    }

    #[test]
    fn the_value_is_that_of_the_yaml() {
        let text = "a: &x {b: [1, two, 2.5, null, true, off, \"3\"]}\nc: *x\n'd e': |\n  text\n1: ünï\n";
        let (value, positions) = parse(text).unwrap();
        let list = json!([1, "two", 2.5, null, true, "off", "3"]);
        assert_eq!(value, json!({ "a": { "b": list }, "c": { "b": list }, "d e": "text\n", "1": "ünï" }));
        for (path, place) in [("a.b[1]", "1:15"), ("c.b[1]", "2:1"), ("[\"d e\"]", "3:1"), ("1", "5:1"), ("z.y", "1:1")]
        {
            assert_eq!(positions.of(path).unwrap().to_string(), place, "{path}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for (text, words) in [
            ("a: 1\nb: {c: 1, c: 2}\n", "2:11: `c` is written twice"),
            ("a: [", "not YAML"),
            ("a: 1\n---\nb: 2\n", "not YAML"),
            ("? [a]\n: 1\n", "not YAML"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
        assert!(parse(&"#".repeat(MAX_DOCUMENT_BYTES + 1)).unwrap_err().contains("larger than"));
        let deep = "[".repeat(100_000);
        assert!(parse(&deep).is_err(), "nesting is bounded");
        let laughs = (1..30)
            .fold("a0: &a0 [x, x]\n".to_owned(), |text, n| format!("{text}a{n}: &a{n} [*a{}, *a{}]\n", n - 1, n - 1));
        assert!(parse(&laughs).is_err(), "aliases do not multiply without end");
    }
}
