//! Rules about Rust sources: what code may not do in which crate, and how a file looks. Judges shipped code; tests are
//! judged only where a rule says so.

use crate::lexer::has_word;
use crate::tree::{Complaint, File, Tree};

/// Past this, look for the second noun.
const MOST_LINES: usize = 700;

const CLOCKS: &[&str] =
    &["SystemTime", "Instant", "sleep", "sleep_until", "interval", "tokio::time", "Utc::now", "UNIX_EPOCH"];
const WORLD: &[&str] = &[
    "std::fs",
    "std::io",
    "std::net",
    "std::env",
    "std::process",
    "std::thread",
    "std::os",
    "tokio",
    "async fn",
    // Their order is luck, and luck comes from outside.
    "HashMap",
    "HashSet",
    "RandomState",
    "rand",
];
const PRINTING: &[&str] = &["println!", "eprintln!", "print!", "eprint!", "dbg!", "io::stdout"];
/// Crates that live in real time and say so once; everywhere else clippy's word stands.
const IN_REAL_TIME: &[&str] = &["server", "runner", "adapters", "cli"];
/// What `repl bench` compares the store with: a bare connection and a script of pgbench, which by their purpose are not the store's.
const IS_COMPARED: &[&str] = &["crates/testkit/src/bare.rs", "crates/testkit/src/pgbench.rs"];
/// Damages tables as no function of the store can, to see the audit report it.
const PLANTS_DAMAGE: &[&str] = &["crates/engine/tests/intents/audit.rs"];
const EMPTY_NAMES: &[&str] = &["Manager", "Helper", "Processor", "Util", "Utils"];
const EMPTY_FILES: &[&str] = &["utils.rs", "util.rs", "helpers.rs", "helper.rs", "common.rs", "misc.rs", "types.rs"];

pub fn model_plan_and_calls_touch_nothing(tree: &Tree) -> Vec<Complaint> {
    let words: Vec<&str> = CLOCKS.iter().chain(WORLD).copied().collect();
    // The zoo is in no build that is shipped.
    let model = shipped_by(tree, "model").filter(|file| file.path != "crates/model/src/zoo.rs");
    let pure = model.chain(shipped_by(tree, "plan")).chain(shipped_by(tree, "calls"));
    pure.flat_map(|file| naming(file, &words, "model, plan and calls have no I/O, clock or luck")).collect()
}

pub fn the_engine_never_asks_the_time(tree: &Tree) -> Vec<Complaint> {
    shipped_by(tree, "engine")
        .flat_map(|file| naming(file, CLOCKS, "in the engine time arrives as an argument"))
        .collect()
}

pub fn only_the_cli_prints(tree: &Tree) -> Vec<Complaint> {
    let others = tree.shipped().filter(|file| file.krate() != "cli");
    others.flat_map(|file| naming(file, PRINTING, "printing for people belongs to the cli")).collect()
}

/// Text from elsewhere may hold escape sequences: `say` shows them instead of passing them on. Its macros take the places of
/// those of `std` only in what stands behind it.
pub fn the_cli_prints_through_one_place(tree: &Tree) -> Vec<Complaint> {
    let past = ["std::println!", "std::eprintln!", "std::print!", "std::eprint!"];
    let cli = || shipped_by(tree, "cli").filter(|file| file.path != "crates/cli/src/say.rs");
    let mut complaints: Vec<_> =
        cli().flat_map(|file| naming(file, &past, "what is said to people goes through `say`")).collect();
    for file in cli().filter(|file| file.path == "crates/cli/src/main.rs") {
        let modules = || file.code().filter(|(_, code)| code.trim_start().starts_with("mod "));
        let first = modules().next().is_some_and(|(_, code)| code.trim() == "mod say;");
        if !first || !file.text.contains("#[macro_use]\nmod say;") {
            complaints.push(file.complain(1, "`#[macro_use] mod say;` comes first"));
        }
    }
    complaints
}

pub fn sql_is_written_in_the_store(tree: &Tree) -> Vec<Complaint> {
    let may = |file: &File| [IS_COMPARED, PLANTS_DAMAGE].iter().any(|these| these.contains(&file.path.as_str()));
    let others = tree.rust().filter(|file| file.krate() != "store" && !is_about_rules(file) && !may(file));
    others
        .flat_map(|file| {
            let found = file.lexed.strings.iter().filter(|(_, text)| is_sql(text));
            found.map(|(line, _)| file.complain(*line, "SQL is written in the store, as a `const` with its promise"))
        })
        .collect()
}

/// In what is shipped and in migrations. A test may try it, to see it refused.
pub fn a_ledger_row_is_never_changed(tree: &Tree) -> Vec<Complaint> {
    let what = "a ledger row is never changed: write a correcting one";
    let mut complaints = Vec::new();
    for file in tree.shipped() {
        let shipped = file.shipped_lines();
        let found = file.lexed.strings.iter().filter(|(line, text)| *line <= shipped && changes_ledger(text));
        complaints.extend(found.map(|(line, _)| file.complain(*line, what)));
    }
    for file in tree.files.iter().filter(|file| file.path.ends_with(".sql")) {
        let mut line = 1;
        for statement in file.text.split(';') {
            if changes_ledger(statement) {
                complaints.push(file.complain(line, what));
            }
            line += statement.matches('\n').count();
        }
    }
    complaints
}

/// A field that a newer process sends must not break an older one. Bodies of the public API are the exception, because a typo in one
/// must not mean the default; that its answers are none is a test of `server`'s description.
pub fn the_wire_ignores_what_it_does_not_know(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in shipped_by(tree, "wire") {
        let is_public = file.path == "crates/wire/src/api.rs" || file.path.starts_with("crates/wire/src/api/");
        if !is_public {
            complaints.extend(naming(file, &["deny_unknown_fields"], "unknown fields are ignored on the wire"));
        }
        // One whose default is right for what newer ones say marks that arm with `#[serde(other)]`.
        let lines: Vec<&str> = file.text.lines().collect();
        let marked = |it: &Enum| {
            lines[it.line - 1..].iter().take_while(|line| **line != "}").any(|line| line.trim() == "#[serde(other)]")
        };
        let closed =
            read_enums(file).into_iter().filter(|it| it.is_plain() && !has_word(&it.body, "Unknown") && !marked(it));
        complaints.extend(closed.map(|it| {
            file.complain(it.line, "a wire enum keeps an `Unknown` or `#[serde(other)]` arm for what newer ones say")
        }));
    }
    complaints
}

pub fn only_some_crates_live_in_real_time(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in tree.shipped().filter(|file| !IN_REAL_TIME.contains(&file.krate())) {
        for (line, code) in file.code().filter(|(_, code)| has_word(code, "disallowed_methods")) {
            if file.krate() != "store" {
                complaints.push(file.complain(line, format!("only {IN_REAL_TIME:?} live in real time")));
            } else if has_word(code, "allow") {
                complaints.push(file.complain(line, "the store's clock says `#[expect(…)]`, at the function"));
            }
        }
    }
    complaints
}

pub fn every_file_says_what_it_owns(tree: &Tree) -> Vec<Complaint> {
    // A name alone says nothing that the path does not.
    let says = |text: &str| {
        text.strip_prefix("//! ").is_some_and(|rest| rest.lines().next().unwrap_or("").split(' ').count() > 2)
    };
    let silent = tree.rust().filter(|file| !says(&file.text));
    silent.map(|file| file.complain(1, "opens with `//!`: what it owns, what it never does")).collect()
}

/// Flat matches that are longer than clippy allows a function to be.
const LONG_MATCHES: &[&str] = &["crates/model/src/job.rs", "crates/model/src/run.rs", "crates/model/src/workflow.rs"];

pub fn only_flat_matches_are_long(tree: &Tree) -> Vec<Complaint> {
    let others = tree.rust().filter(|file| !LONG_MATCHES.contains(&file.path.as_str()));
    let what = "a function of more than 120 lines does two things: only the matches of some lives may be longer";
    others.flat_map(|file| naming(file, &["too_many_lines"], what)).collect()
}

pub fn no_file_is_too_long(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let written = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("--");
    for file in tree.files.iter().filter(|file| file.path.ends_with(".sql")) {
        let lines = file.text.lines().filter(written).count();
        if lines > MOST_LINES {
            complaints.push(file.complain(1, format!("{lines} lines of SQL, {MOST_LINES} at most")));
        }
    }
    for file in tree.rust() {
        let lines = file.code().filter(|(_, code)| !code.trim().is_empty()).count();
        if lines > MOST_LINES {
            complaints.push(
                file.complain(1, format!("{lines} lines of code, {MOST_LINES} at most: look for the second noun")),
            );
        }
    }
    complaints
}

pub fn nothing_is_left_undone(tree: &Tree) -> Vec<Complaint> {
    tree.rust()
        .flat_map(|file| {
            let lines = file.lexed.code.lines().enumerate();
            lines
                .filter(|(_, code)| has_word(code, "todo!") || has_word(code, "unimplemented!"))
                .map(|(at, _)| file.complain(at + 1, "no stubs: what is there works"))
                .collect::<Vec<_>>()
        })
        .collect()
}

pub fn names_say_something(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in tree.rust() {
        if EMPTY_FILES.iter().any(|name| file.path.ends_with(&format!("/{name}"))) {
            complaints.push(file.complain(1, "name the file after the noun it owns"));
        }
        for (line, code) in file.code() {
            let declared = ["struct ", "enum ", "trait ", "type "].iter().find_map(|kind| declared_after(code, kind));
            if let Some(name) = declared.filter(|name| EMPTY_NAMES.iter().any(|empty| name.ends_with(empty))) {
                complaints.push(file.complain(line, format!("`{name}`: use a name a person would say")));
            }
        }
    }
    complaints
}

fn shipped_by<'t>(tree: &'t Tree, krate: &'static str) -> impl Iterator<Item = &'t File> {
    tree.shipped().filter(move |file| file.krate() == krate)
}

fn naming(file: &File, words: &[&str], why: &str) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (line, code) in file.code() {
        let found = words.iter().filter(|word| has_word(code, word));
        complaints.extend(found.map(|word| file.complain(line, format!("`{word}`: {why}"))));
    }
    complaints
}

/// These rules have to show what they refuse.
fn is_about_rules(file: &File) -> bool {
    file.path.starts_with("crates/testkit/tests/tidy/")
}

fn is_sql(text: &str) -> bool {
    let flat = flatten(text);
    let starts = |start: &str| flat.starts_with(start);
    (starts("select ") && flat.contains(" from "))
        || (starts("update ") && flat.contains(" set "))
        || (starts("with ") && flat.contains(" as ( select "))
        || (starts("with ") && flat.contains(" as (select "))
        || ["insert into ", "replace into ", "delete from ", "create table ", "create index ", "create unique index "]
            .into_iter()
            .any(starts)
        || ["alter table ", "drop table ", "drop index ", "create trigger ", "pragma ", "truncate "]
            .into_iter()
            .any(starts)
}

fn changes_ledger(text: &str) -> bool {
    let flat = flatten(text);
    let names_it = |verb: &str| {
        flat.match_indices(verb).any(|(at, _)| {
            let table = flat[at + verb.len()..].trim_start_matches("only ").trim_start_matches("table ");
            table.trim_start_matches('"').starts_with("ledger")
        })
    };
    names_it("update ")
        || names_it("delete from ")
        || names_it("truncate ")
        || names_it("replace into ")
        || (names_it("insert into ") && flat.contains(" do update"))
}

/// Lower case, one blank between words, no SQL comments.
fn flatten(text: &str) -> String {
    let bare = text.lines().map(|line| line.split("--").next().unwrap_or("")).collect::<Vec<_>>().join(" ");
    bare.replace("\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

fn declared_after(code: &str, kind: &str) -> Option<String> {
    let rest = code.trim_start().strip_prefix("pub ").unwrap_or(code.trim_start()).strip_prefix(kind)?;
    Some(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
}

struct Enum {
    line: usize,
    attributes: String,
    body: String,
}

impl Enum {
    /// Of words, or tagged: both can have a last arm for the unknown. Untagged data is told apart by its fields.
    fn is_plain(&self) -> bool {
        let tagged = has_word(&self.attributes, "tag");
        has_word(&self.attributes, "Deserialize") && (tagged || !self.body.contains(['(', '{']))
    }
}

fn read_enums(file: &File) -> Vec<Enum> {
    let (mut enums, mut attributes) = (Vec::new(), String::new());
    let lines: Vec<(usize, &str)> = file.code().collect();
    for (at, (number, line)) in lines.iter().enumerate() {
        let line = line.trim();
        if line.starts_with("#[") {
            attributes.push_str(line);
        } else if declared_after(line, "enum ").is_some() {
            let body = lines[at + 1..].iter().map(|(_, line)| *line).take_while(|line| !line.starts_with('}'));
            let body = body.filter(|line| !line.trim_start().starts_with("#[")).collect::<Vec<_>>().join("\n");
            enums.push(Enum { line: *number, attributes: std::mem::take(&mut attributes), body });
        } else if !line.is_empty() {
            attributes.clear();
        }
    }
    enums
}
