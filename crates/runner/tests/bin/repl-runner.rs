//! What the tests start in place of `repl`: the entry points of this crate and nothing else.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let what = arguments.next().unwrap_or_default();
    if what == "keeper" {
        runner::keeper_main();
    }
    let dir = PathBuf::from(arguments.next().unwrap_or_default());
    match what.to_str() {
        Some("run") => runner::run(&dir),
        Some("end") => runner::end(&dir).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
        _ => ExitCode::from(2),
    }
}
