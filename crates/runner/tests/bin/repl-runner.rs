//! What the tests start in place of `repl`: the entry points of this crate, and a stand-in for MCP servers and their callers. The stand-in
//! answers each caller with its process id and how many it has answered before.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let what = arguments.next().unwrap_or_default();
    if what == "keeper" {
        runner::keeper_main();
    }
    if what == "first" {
        runner::first_main();
    }
    let dir = PathBuf::from(arguments.next().unwrap_or_default());
    match what.to_str() {
        Some("run") => runner::run(&dir),
        Some("end") => runner::end(&dir).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
        Some("mcp-serve") => serve(&dir).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
        Some("mcp-call") => call().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
        _ => ExitCode::from(2),
    }
}

fn serve(socket: &Path) -> std::io::Result<()> {
    let name = std::env::args().nth(3).unwrap_or_default();
    let variables = ["REPL_STEP_TOKEN", "COLOUR"].map(|name| std::env::var(name).unwrap_or_default());
    for (answered, caller) in UnixListener::bind(socket)?.incoming().enumerate() {
        let pid = std::process::id();
        let [token, colour] = &variables;
        writeln!(
            caller?,
            "{{\"server\": \"{name}\", \"pid\": {pid}, \"answered\": {answered}, \"token\": \"{token}\", \"colour\": \"{colour}\"}}"
        )?;
    }
    Ok(())
}

fn call() -> std::io::Result<()> {
    let socket = std::env::var("REPL_MCP").map_err(std::io::Error::other)?;
    let mut server = loop {
        match UnixStream::connect(&socket) {
            Ok(server) => break server,
            Err(_) => std::thread::yield_now(), // it has just been started
        }
    };
    let mut text = String::new();
    server.read_to_string(&mut text)?;
    std::io::stdout().write_all(text.as_bytes())
}
