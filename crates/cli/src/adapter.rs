//! `repl adapter`: the check that any execution adapter should pass, and the two commands by which an adapter in any language reads its
//! inputs and puts its result on the remote.

use crate::args::Json;
use crate::complaint::{Complaint, Done, REFUSED, USAGE};
use crate::say::one_line;
use crate::{exec_repl, quantity, show};
use calls::adapter::{MAX_BYTES, Request};
use calls::function::{Function, SCHEME};
use calls::record::ExecStatus;
use calls::{Value, json};
use server::adapter::check::{Case, Check};
use server::adapter::exchange::Exchange;
use server::adapter::{Adapters, Own, local};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Of a value that is read from stdin.
const MAX_VALUE_BYTES: u64 = 64 << 20;

#[derive(Debug, clap::Subcommand)]
pub enum Adapter {
    /// Ask an adapter all that an executor may ask, and say what it does wrong
    #[command(after_help = "Examples:
  repl adapter check ./dml-exec-mine
  repl adapter check ./dml-exec-mine --input '\"a text\"' --input 5 --json
  repl adapter check dml-exec-local \\
    --function 'dml+exec://dml-exec-local/PATH?blake3=DIGEST'
  repl adapter check dml-exec-repl --function dml+exec://dml-exec-repl/run \\
    --input '{\"commands\": [\"echo hello\"]}'

One line for each case. The protocol: docs/adapters.md")]
    Check(CheckArgs),
    /// Print the inputs of a call as a JSON list
    #[command(after_help = "Examples:
  repl adapter inputs request.json")]
    Inputs(RequestArgs),
    /// Put the value on stdin on the remote as the call's result, and print the answer
    #[command(after_help = "Examples:
  echo '{\"words\": 3}' | repl adapter result request.json
  echo '{\"message\": \"no file\"}' | repl adapter result request.json --error")]
    Result {
        #[command(flatten)]
        request: RequestArgs,
        /// The value describes a failure
        #[arg(long)]
        error: bool,
    },
}

#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    /// Its file, or its name on $PATH
    #[arg(value_name = "PROGRAM", value_hint = clap::ValueHint::FilePath)]
    program: PathBuf,
    /// What it is asked to execute [default: dml+exec://PROGRAM/check]
    #[arg(long, value_name = "URI")]
    function: Option<String>,
    /// An input of the call, as JSON; may be given several times
    #[arg(long = "input", value_name = "JSON")]
    inputs: Vec<String>,
    /// How long one execution may take
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = quantity::duration)]
    timeout: i64,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, clap::Args)]
pub struct RequestArgs {
    /// A file with the request as the adapter got it
    #[arg(value_name = "REQUEST", value_hint = clap::ValueHint::FilePath)]
    request: PathBuf,
}

pub fn adapter(command: Adapter) -> Done {
    match command {
        Adapter::Check(args) => check(args),
        Adapter::Inputs(args) => {
            let request = read(&args.request)?;
            let inputs = Exchange::open(&request).and_then(|mut exchange| exchange.inputs()).map_err(failed)?;
            println!("{}", inputs.iter().map(json::to_json).collect::<serde_json::Value>());
            Ok(0)
        }
        Adapter::Result { request, error } => {
            let request = read(&request.request)?;
            let mut text = String::new();
            let stdin = std::io::stdin().take(MAX_VALUE_BYTES).read_to_string(&mut text);
            stdin.map_err(|error| Complaint::usage(format!("cannot read the value on stdin: {error}")))?;
            let value =
                json::parse(&text).map_err(|error| Complaint::value("the value on stdin", &error.to_string()))?;
            let status = if error { ExecStatus::Error } else { ExecStatus::Ok };
            let answer = Exchange::open(&request).and_then(|exchange| exchange.publish(status, &value));
            println!("{}", answer.map_err(failed)?.document());
            Ok(0)
        }
    }
}

fn failed(error: server::adapter::exchange::ExchangeError) -> Complaint {
    Complaint { code: REFUSED, text: one_line(&error.to_string()), fix: None }
}

fn read(path: &Path) -> Done<Request> {
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_BYTES as u64).read_to_string(&mut text));
    read.map_err(|error| Complaint::file("read", path, &error))?;
    serde_json::from_str(&text).map_err(|error| {
        Complaint::usage(format!("{} is not a request: {error}", one_line(&path.display().to_string())))
            .fix("write what the adapter got on stdin into this file, as it is")
    })
}

fn check(args: CheckArgs) -> Done {
    let (name, path) = place(&args.program)?;
    let function = args.function.unwrap_or_else(|| format!("{SCHEME}://{name}/check"));
    let function = Function::parse(&function).map_err(|bad| Complaint::value("--function", &bad.to_string()))?;
    if function.adapter() != name {
        let text = format!("--function: `{}` is executed by {}, not by {name}", function.uri(), function.adapter());
        return Err(Complaint::usage(text).fix(format!("write {SCHEME}://{name}/NAME")));
    }
    let input = |text: &String| json::parse(text).map_err(|bad| Complaint::value("--input", &bad.to_string()));
    let inputs: Vec<Value> = args.inputs.iter().map(input).collect::<Done<_>>()?;
    let folder = tempfile::tempdir().map_err(|error| Complaint::usage(format!("no temporary folder: {error}")))?;
    let variables = exec_repl::VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var(name).ok()?)));
    let own = Own::running(&[local::NAME, exec_repl::NAME], variables.collect());
    let own = own.map_err(|error| Complaint::usage(format!("where is this program? {error}")))?;
    let adapters = Adapters { path, own: Some(own), ..Adapters::new(vec![name]) };
    let within = Duration::from_millis(args.timeout.max(0) as u64);
    let check = Check { adapters, function, inputs, folder: folder.path().to_owned(), within };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Complaint::usage(format!("cannot start: {error}")))?;
    let cases =
        runtime.block_on(check.run()).map_err(|error| Complaint { code: USAGE, text: error.to_string(), fix: None })?;
    report(&cases, args.json)
}

/// The name of an adapter and the folders in which it is found first.
fn place(program: &Path) -> Done<(String, std::ffi::OsString)> {
    let usual = std::env::var_os("PATH").unwrap_or_default();
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let folder = program.parent().filter(|folder| *folder != Path::new("") || program.is_absolute());
    let Some(folder) = folder else { return Ok((name, usual)) };
    if !program.is_file() {
        return Err(Complaint::usage(format!("there is no file {}", one_line(&program.display().to_string()))));
    }
    let folder = folder.canonicalize().map_err(|error| Complaint::file("find", folder, &error))?;
    let folders = std::iter::once(folder).chain(std::env::split_paths(&usual));
    let path = std::env::join_paths(folders).map_err(|error| Complaint::usage(error.to_string()))?;
    Ok((name, path))
}

fn report(cases: &[Case], as_json: Json) -> Done {
    let bad = cases.iter().filter(|case| case.failed.is_some()).count();
    if as_json.json {
        show::json(&serde_json::json!({ "passed": bad == 0, "cases": cases }))?;
    } else {
        for case in cases {
            match (&case.failed, &case.came) {
                (None, None) => println!("ok    {:<15} {}", case.name, case.expected),
                (None, Some(came)) => println!("ok    {:<15} {} ({})", case.name, case.expected, one_line(came)),
                (Some(why), _) => {
                    println!("FAIL  {:<15} expected: {}; came: {}", case.name, case.expected, one_line(why))
                }
            }
        }
        match bad {
            0 => println!("all {} cases passed", cases.len()),
            bad => println!("{bad} of {} cases failed", cases.len()),
        }
    }
    Ok(if bad == 0 { 0 } else { REFUSED })
}
