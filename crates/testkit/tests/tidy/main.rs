//! The rules of the context, checked on the whole checkout. Each rule comes with a sample it refuses and one it lets
//! pass, so that none is a rule that cannot fail. What clippy can check is in clippy.toml, not here.

mod lexer;
mod points;
mod sources;
mod texts;
mod tree;
mod walls;

use std::path::Path;
use tree::{Complaint, Tree};

type Samples = &'static [(&'static str, &'static str)];

/// Makes one test per rule: it holds here, refuses each bad sample, and accepts the good ones together.
macro_rules! rules {
    ($($module:ident :: $rule:ident refuses $bad:expr; accepts $good:expr;)*) => {$(
        #[test]
        fn $rule() {
            check($module::$rule, $bad, $good);
        }
    )*};
}

fn check(rule: fn(&Tree) -> Vec<Complaint>, bad: Samples, good: Samples) {
    for sample in bad {
        assert!(!rule(&Tree::of(&[*sample])).is_empty(), "the rule cannot fail: it accepts {sample:?}");
    }
    report("the rule refuses a good sample", rule(&Tree::of(good)));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    report("the rule is broken", rule(&Tree::read(&root)));
}

fn report(what: &str, complaints: Vec<Complaint>) {
    let list: Vec<String> = complaints.iter().map(|complaint| format!("  {complaint}")).collect();
    assert!(list.is_empty(), "{what}:\n{}\n", list.join("\n"));
}

rules! {
    walls::crates_know_only_whom_they_may
        refuses &[
            ("crates/runner/Cargo.toml", "[dependencies]\nstore.workspace = true"),
            ("crates/model/Cargo.toml", "[dependencies]\nwire.workspace = true"),
            ("crates/engine/Cargo.toml", "[dev-dependencies]\nserver.workspace = true"),
            ("crates/wire/Cargo.toml", "[target.'cfg(unix)'.dependencies]\ns = { package = 'store', path = '../store' }"),
            ("crates/billing/Cargo.toml", "[dependencies]"),
        ];
        accepts &[
            ("crates/engine/Cargo.toml", "[dependencies]\nstore.workspace = true\n[dev-dependencies]\ntestkit.workspace = true"),
        ];
    walls::model_plan_and_calls_are_pure_by_their_dependencies
        refuses &[
            ("crates/model/Cargo.toml", "[dependencies]\ntokio = '1'"),
            ("crates/model/Cargo.toml", "[build-dependencies]\ncc = '1'"),
            ("crates/plan/Cargo.toml", "[dependencies]\nreqwest = '1'"),
            ("crates/calls/Cargo.toml", "[dependencies]\nobject_store = '1'"),
        ];
        accepts &[("crates/model/Cargo.toml", "[dependencies]\nserde = '1'\n[dev-dependencies]\nproptest = '1'")];
    walls::each_outside_world_has_its_crate
        refuses &[
            ("crates/engine/Cargo.toml", "[dependencies]\nrusqlite = '1'"),
            ("crates/testkit/Cargo.toml", "[dependencies]\ntokio-postgres = '1'"),
            ("crates/adapters/Cargo.toml", "[dependencies]\naws-sdk-s3 = '1'"),
            ("crates/store/Cargo.toml", "[dependencies]\naws-sdk-ec2 = '1'"),
            ("crates/runner/Cargo.toml", "[dependencies]\nweb = { package = 'axum', version = '1' }"),
            ("crates/server/Cargo.toml", "[dependencies]\nclap = '4'"),
            ("crates/cli/Cargo.toml", "[dependencies]\nchrono = '0.4'"),
        ];
        accepts &[
            ("crates/store/Cargo.toml", "[dependencies]\nrusqlite = '1'\ntokio-postgres-rustls = '1'"),
            ("crates/testkit/Cargo.toml", "[dependencies]\nrusqlite = '1'"),
            ("crates/server/Cargo.toml", "[dependencies]\naxum = '1'"),
        ];

    sources::model_plan_and_calls_touch_nothing
        refuses &[
            ("crates/model/src/run.rs", "use std::time::SystemTime;"),
            ("crates/model/src/run.rs", "fn f() { std::fs::read(\"x\"); }"),
            ("crates/model/src/run.rs", "use std::collections::HashMap;"),
            ("crates/plan/src/check.rs", "use std::fs;"),
            ("crates/calls/src/object.rs", "use std::collections::HashMap;"),
        ];
        accepts &[
            ("crates/model/src/run.rs", "//! Never a SystemTime.\nfn f() {}\n#[cfg(test)]\nmod tests {\n use std::fs;\n}"),
            ("crates/model/src/interval.rs", "/// An interval, e.g. std::fs\npub struct Interval;"),
        ];
    sources::the_engine_never_asks_the_time
        refuses &[
            ("crates/engine/src/run.rs", "let now = Instant::now();"),
            ("crates/engine/src/run.rs", "tokio::time::timeout(x, y).await"),
            ("crates/engine/src/run.rs", "#[cfg(test)]\nmod tests;\nfn f() { sleep(1) }"),
        ];
        accepts &[
            ("crates/engine/src/run.rs", "fn f(now: Timestamp) { log(\"no sleep\") } // Instant"),
            ("crates/server/src/run.rs", "let now = Instant::now();"),
        ];
    sources::only_the_cli_prints
        refuses &[
            ("crates/store/src/run.rs", "println!(\"{x}\");"),
            ("crates/runner/src/run.rs", "eprintln!(\"x\");"),
            ("crates/server/src/run.rs", "let mut out = std::io::stdout();"),
        ];
        accepts &[
            ("crates/cli/src/run.rs", "println!(\"{x}\");"),
            ("crates/store/tests/run.rs", "println!(\"{x}\");"),
        ];
    sources::the_cli_prints_through_one_place
        refuses &[
            ("crates/cli/src/ps.rs", "fn f() { std::println!(\"x\"); }"),
            ("crates/cli/src/main.rs", "mod ps;\n#[macro_use]\nmod say;"),
            ("crates/cli/src/main.rs", "mod say;\nmod ps;"),
        ];
        accepts &[
            ("crates/cli/src/ps.rs", "fn f() { println!(\"x\"); }"),
            ("crates/cli/src/main.rs", "#[macro_use]\nmod say;\n\nmod ps;"),
        ];
    sources::sql_is_written_in_the_store
        refuses &[
            ("crates/engine/src/run.rs", "const Q: &str = \"\n  SELECT id\n    FROM runs\";"),
            ("crates/engine/src/run.rs", "const Q: &str = r#\"update runs set status = $1\"#;"),
            ("crates/server/src/run.rs", "q(\"DELETE FROM runs\")"),
            ("crates/engine/tests/intents/run.rs", "q(\"DELETE FROM runs\")"),
            ("crates/testkit/src/audit.rs", "q(\"WITH a AS (SELECT 1) SELECT * FROM a\")"),
        ];
        accepts &[
            ("crates/store/src/run.rs", "const Q: &str = \"SELECT id FROM runs\";"),
            ("crates/testkit/src/bare.rs", "const Q: &str = \"INSERT INTO bare (body) VALUES (?1)\";"),
            ("crates/cli/src/run.rs", "help(\"select a run\"); help(\"update the settings\")"),
        ];
    sources::a_ledger_row_is_never_changed
        refuses &[
            ("crates/store/src/ledger.rs", "const Q: &str = \"UPDATE ledger SET amount = 0\";"),
            ("crates/store/src/ledger.rs", "const Q: &str = \"\n DELETE\n  FROM ledger_entries\";"),
            ("crates/store/src/ledger.rs", "const Q: &str = \"INSERT INTO ledger (a) VALUES ($1) ON CONFLICT (a) DO UPDATE SET a = 1\";"),
            ("crates/store/migrations/sqlite/0009_x.sql", "-- tidy up\nDELETE FROM ledger;"),
        ];
        accepts &[
            ("crates/store/src/ledger.rs", "const Q: &str = \"INSERT INTO ledger (a) VALUES ($1) ON CONFLICT DO NOTHING\";"),
            ("crates/store/tests/ledger.rs", "refused(\"UPDATE ledger SET amount = 0\")"),
            ("crates/store/migrations/sqlite/0001_x.sql", "CREATE TRIGGER t BEFORE UPDATE ON ledger BEGIN SELECT 1; END;"),
        ];
    sources::the_wire_ignores_what_it_does_not_know
        refuses &[
            ("crates/wire/src/run.rs", "#[serde(deny_unknown_fields)]\nstruct Run {}"),
            ("crates/wire/src/run.rs", "#[derive(Deserialize)]\npub enum Status {\n    Open,\n}"),
            ("crates/wire/src/run.rs", "#[derive(Deserialize)]\n#[serde(tag = \"kind\")]\npub enum What {\n    Ended { code: i32 },\n}"),
        ];
        accepts &[
            ("crates/wire/src/run.rs", "#[derive(Deserialize)]\npub enum Status {\n    Open,\n    #[serde(other)]\n    Unknown,\n}"),
            ("crates/wire/src/api.rs", "#[serde(deny_unknown_fields)]\nstruct Submit {}"),
            ("crates/wire/src/client.rs", "#[derive(Debug)]\npub enum ClientError {\n    Gone,\n}"),
            ("crates/wire/src/command.rs", "#[derive(Deserialize)]\npub enum Command {\n    Shell(String),\n}"),
        ];
    sources::only_some_crates_live_in_real_time
        refuses &[
            ("crates/engine/src/lib.rs", "#![allow(clippy::disallowed_methods)]"),
            ("crates/wire/src/lib.rs", "#[expect(clippy::disallowed_methods)]"),
            ("crates/store/src/lib.rs", "#![allow(clippy::disallowed_methods)]"),
        ];
        accepts &[
            ("crates/server/src/lib.rs", "#![allow(clippy::disallowed_methods, reason = \"r\")]"),
            ("crates/store/src/clock.rs", "#[expect(clippy::disallowed_methods, reason = \"the clock\")]"),
        ];
    sources::every_file_says_what_it_owns
        refuses &[("crates/cli/src/main.rs", "fn main() {}"), ("crates/cli/tests/run.rs", "// a test\n"), ("crates/store/src/lib.rs", "//! store\n")];
        accepts &[("crates/cli/src/main.rs", "//! The `repl` binary.\nfn main() {}")];
    sources::nothing_is_left_undone
        refuses &[("crates/cli/src/a.rs", "fn f() { todo!() }"), ("crates/cli/tests/b.rs", "unimplemented!(\"later\")")];
        accepts &[("crates/cli/src/a.rs", "// never todo!()\nfn f() { unreachable!(\"why\") }")];
    sources::only_flat_matches_are_long
        refuses &[
            ("crates/engine/src/run.rs", "#[expect(clippy::too_many_lines, reason = \"r\")]\nfn f() {}"),
            ("crates/cli/tests/run.rs", "#![allow(clippy::too_many_lines)]"),
        ];
        accepts &[("crates/model/src/run.rs", "#[expect(clippy::too_many_lines, reason = \"r\")]\nfn apply() {}")];
    sources::names_say_something
        refuses &[
            ("crates/engine/src/run.rs", "pub struct RunManager {"),
            ("crates/engine/src/run.rs", "trait StoreHelper {"),
            ("crates/engine/src/utils.rs", "//! things"),
        ];
        accepts &[("crates/engine/src/run.rs", "pub struct Runs;\nlet manager = 1;")];

    points::every_crash_point_is_registered
        refuses &[
            ("crates/engine/src/run.rs", "store.write(Lane::Normal, \"run.reconcile\", f)"),
            ("crates/engine/src/run.rs", "store.write(Lane::Normal.of(job.run), \"run.reconcile\", f)"),
            ("crates/engine/src/run.rs", "self.keyed(\n  \"run.act\", key, 200, f)"),
            ("crates/runner/src/cache.rs", "crash_point!(\"cache.keep\", rename(a, b))?"),
            ("crates/model/src/fault.rs", "pub const POINTS: &[(&str, &[Role])] = &[\n    (\"gone\", &[Role::Server]),\n];"),
        ];
        accepts &[
            ("crates/model/src/fault.rs", "pub const POINTS: &[(&str, &[Role])] = &[\n    (\"run.reconcile\", &[Role::Worker]),\n];"),
            ("crates/engine/src/run.rs", "store.write(Lane::Normal, \"run.reconcile\", f); ask(Lane::High, \"log.read\", Access::Read, f)"),
        ];

    texts::no_text_is_unfinished
        refuses &[
            ("crates/cli/src/a.rs", concat!("// TO", "DO: later")),
            ("scripts/test", concat!("# FIX", "ME")),
        ];
        accepts &[("scripts/test", "mktemp -d /tmp/a.XXXXXX")];
    texts::no_text_knows_a_machine
        refuses &[
            ("scripts/test", concat!("cd /wo", "rk/main")),
            ("README.md", concat!("`/ro", "ot/.cargo`")),
            ("README.md", concat!("from https://pypi", ".org/simple")),
        ];
        accepts &[("crates/runner/src/a.rs", concat!("let dir = format!(\"{home}/wo", "rk/1\");"))];
    texts::the_glossary_knows_every_state
        refuses &[("crates/model/src/run.rs", "string_enum! {\n    pub enum RunStatus { Open = \"open\" }\n}")];
        accepts &[
            ("crates/model/src/run.rs", "string_enum! {\n    pub enum RunStatus {\n        Open = \"open\",\n    }\n}\nconst A: &str = \"a\";"),
            ("GLOSSARY.md", "| run | `open` | |"),
        ];
    texts::tables_of_tests_name_only_tests_that_exist
        refuses &[("docs/calls.md", "| sentence | test |\n|---|---|\n| a claim is taken over | `a::taken_over` (`result`) |")];
        accepts &[
            ("docs/calls.md", "| sentence | test |\n|---|---|\n| a claim is taken over | `a::taken_over` (`result`) |"),
            ("docs/other.md", "| key | meaning |\n|---|---|\n| x | `no_test` |"),
            ("crates/model/tests/a.rs", "#[test]\nfn taken_over() {}"),
        ];

    texts::documents_name_only_what_exists
        refuses &[
            ("README.md", "see `crates/model/src/gone.rs`"),
            ("README.md", "see [the licence](LICENCE)"),
            ("docs/decisions/a.md", "see `GLOSARY.md`"),
        ];
        accepts &[
            ("README.md", "see [this](docs/decisions/a.md), `docs/decisions/` and `crates/<name>/src/lib.rs`"),
            ("docs/decisions/a.md", "back to [the start](../../README.md) or `README.md`"),
        ];
}

#[test]
fn no_file_is_too_long() {
    let long = format!("//! Long.\n{}", "fn f() {}\n".repeat(701));
    let short =
        format!("//! Short.\n{}\n#[cfg(test)]\nmod tests {{\n{}}}", "// why\n".repeat(900), "fn f() {}\n".repeat(900));
    let (long_sql, short_sql) = ("SELECT 1;\n".repeat(701), "-- why\nSELECT 1;\n".repeat(700));
    let long = [("crates/a/src/a.rs", &*long), ("crates/store/migrations/sqlite/0001_a.sql", &*long_sql)];
    let short = [("crates/a/src/b.rs", &*short), ("crates/store/migrations/sqlite/0001_b.sql", &*short_sql)];
    assert_eq!(sources::no_file_is_too_long(&Tree::of(&long)).len(), 2);
    assert_eq!(sources::no_file_is_too_long(&Tree::of(&short)).len(), 0);
    check(sources::no_file_is_too_long, &[], &[]);
}
