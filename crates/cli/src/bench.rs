//! `repl bench`: how fast this machine's Remuda is, each figure beside what the machine itself takes for the same work, in the same
//! run. Starts control planes of its own in temporary homes and leaves nothing running. Never touches the user's.

mod agents;
mod bare;
mod calls;
mod crowd;
mod figure;
mod files;
mod followers;
mod idle;
mod listing;
mod plane;
mod postgres;
mod recovery;
mod runs;
mod submits;
mod warm;

use crate::complaint::{Complaint, DETACHED, Done};
use crate::nearest::suggestion;
use crate::show;
use figure::{Figure, Spread};
use std::path::{Path, PathBuf};
use std::pin::Pin;

/// Measure this machine: starts, submits, runs, steps, listings, recovery, followers, idleness
#[derive(Debug, clap::Args)]
#[command(after_help = "Each figure stands beside what the machine itself takes for the same work,
measured in turns with it. A goal that is missed says NO. What each figure
means: docs/performance.md

Examples:
  repl bench
  repl bench warm submits --repeats 9
  repl bench --quick --json > bench.json
  repl bench agents --restate ~/restate
  repl bench calls --joblib ~/venv/bin/python
  repl bench postgres --database postgres://remuda@127.0.0.1/bench")]
pub struct BenchArgs {
    /// Which: warm, submits, runs, agents, calls, files, listing, recovery, followers, postgres, idle; all of them unless named
    names: Vec<String>,
    /// Smaller and fewer: a minute instead of ten, for a first impression
    #[arg(long)]
    quick: bool,
    /// Each figure is measured so often, in turns with its comparison
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    repeats: u32,
    /// An empty PostgreSQL database for `postgres`; a private server is started unless set
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// A folder with restate-server and restate-service, which `agents` is compared with
    #[arg(long, value_name = "FOLDER")]
    restate: Option<PathBuf>,
    /// A Python that has joblib, which `calls` is compared with
    #[arg(long, value_name = "PYTHON")]
    joblib: Option<PathBuf>,
    /// JSON on stdout and nothing else there
    #[arg(long)]
    json: bool,
}

/// How much is measured.
pub struct Plan {
    pub repeats: usize,
    pub quick: bool,
    pub database: Option<String>,
    pub restate: Option<PathBuf>,
    pub joblib: Option<PathBuf>,
    /// A home with many open runs, made when it is first needed.
    pub crowd: crowd::Crowd,
}

impl Plan {
    /// The usual size, or a tenth of it.
    fn size(&self, usual: usize) -> usize {
        if self.quick { (usual / 10).max(1) } else { usual }
    }

    /// The numbers of the repeats; each is printed to stderr when it begins.
    fn repeats(&self, name: &'static str) -> impl Iterator<Item = usize> {
        let all = self.repeats;
        (1..=all).inspect(move |number| eprintln!("repl: {name}, {number} of {all}"))
    }
}

type Measured<'p> = Pin<Box<dyn Future<Output = Done<Vec<Figure>>> + 'p>>;

/// Every bench, in the order they run: the quiet ones first.
const BENCHES: &[(&str, fn(&Plan) -> Measured<'_>)] = &[
    ("idle", |plan| Box::pin(idle::measure(plan))),
    ("warm", |plan| Box::pin(warm::measure(plan))),
    ("submits", |plan| Box::pin(submits::measure(plan))),
    ("runs", |plan| Box::pin(runs::measure(plan))),
    ("agents", |plan| Box::pin(agents::measure(plan))),
    ("calls", |plan| Box::pin(calls::measure(plan))),
    ("followers", |plan| Box::pin(followers::measure(plan))),
    ("files", |plan| Box::pin(files::measure(plan))),
    ("listing", |plan| Box::pin(listing::measure(plan))),
    ("recovery", |plan| Box::pin(recovery::measure(plan))),
    ("postgres", |plan| Box::pin(postgres::measure(plan))),
];

pub async fn bench(args: BenchArgs) -> Done {
    let chosen = chosen(&args.names)?;
    let plan = Plan {
        repeats: args.repeats as usize,
        quick: args.quick,
        database: args.database.clone(),
        restate: args.restate.as_deref().map(absolute).transpose()?,
        joblib: args.joblib.as_deref().map(absolute).transpose()?,
        crowd: Default::default(),
    };
    tokio::select! {
        done = measure(&plan, &chosen, args.json) => done,
        // What was started goes with the futures that own it.
        _ = tokio::signal::ctrl_c() => {
            eprintln!("repl: interrupted; everything that was started is ended");
            Ok(DETACHED)
        }
    }
}

/// Programs are started in folders of their own.
fn absolute(path: &Path) -> Done<PathBuf> {
    std::path::absolute(path).map_err(|error| Complaint::file("find", path, &error))
}

fn chosen(names: &[String]) -> Done<Vec<usize>> {
    let all: Vec<&str> = BENCHES.iter().map(|(name, _)| *name).collect();
    if names.is_empty() {
        return Ok((0..all.len()).collect());
    }
    let find = |name: &String| {
        all.iter()
            .position(|known| known == name)
            .ok_or_else(|| Complaint::usage(format!("there is no bench `{name}`")).fix(suggestion(name, &all)))
    };
    let mut found: Vec<usize> = names.iter().map(find).collect::<Done<_>>()?;
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

async fn measure(plan: &Plan, chosen: &[usize], json: bool) -> Done {
    let load = bare::load();
    let home = plane::Home::new()?;
    let disk = Spread::of(&bare::fdatasyncs(home.path(), 50)?);
    let (mut figures, mut failed) = (Vec::new(), Vec::new());
    for (name, bench) in chosen.iter().map(|at| BENCHES[*at]) {
        eprintln!("repl: measuring {name} (load {:.1})", bare::load());
        match bench(plan).await {
            Ok(found) => figures.extend(found),
            Err(complaint) => {
                eprintln!("{complaint}");
                failed.push(name);
            }
        }
    }
    let missed = figures.iter().filter(|figure| figure.is_met() == Some(false)).count();
    if json {
        show::json(&serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "repeats": plan.repeats,
            "quick": plan.quick,
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "load_before": load,
            "load_after": bare::load(),
            "fdatasync_ms": disk,
            "optimised": !cfg!(debug_assertions),
            "figures": figure::json(&figures),
            "goals_missed": missed,
            "not_measured": failed,
        }))?;
    } else {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        println!(
            "{} repeats{} on {cores} cores; load {load:.1} before, {:.1} after; a page reaches the disk in {:.2} ms ({:.2}–{:.2})",
            plan.repeats,
            if plan.quick { " (quick)" } else { "" },
            bare::load(),
            disk.median,
            disk.min,
            disk.max
        );
        if cfg!(debug_assertions) {
            println!("This is not an optimised build: `cargo run --release -- bench` is meant.");
        }
        figure::print(&figures);
    }
    let goals = figures.iter().filter(|figure| figure.goal.is_some()).count();
    eprintln!("repl: {} of {goals} goals met", goals - missed);
    match failed.as_slice() {
        [] => Ok(0),
        names => Err(Complaint::refused(format!("not measured: {}", names.join(", ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benches_are_found_by_name_and_run_once() {
        let names = |words: &[&str]| chosen(&words.iter().map(|word| word.to_string()).collect::<Vec<_>>());
        assert_eq!(names(&[]).unwrap().len(), BENCHES.len());
        let both = names(&["submits", "warm", "submits"]).unwrap();
        assert_eq!(both.iter().map(|at| BENCHES[*at].0).collect::<Vec<_>>(), ["warm", "submits"]);
        assert!(names(&["submit"]).unwrap_err().fix.unwrap().contains("submits"));
    }
}
