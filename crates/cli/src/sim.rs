//! `repl sim`: runs thousands of simulations, each from one seed. Prints counts and speed, and shrinks the faults of one that fails.
//! Needs no control plane, and touches nothing outside this process.

use crate::complaint::{Done, REFUSED};
use crate::show;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use testkit::shrink::shrink;
use testkit::sim::{self, Decision, Report};

/// Try the real engine in simulated worlds, where everything goes wrong that can, and judge it
#[derive(Debug, clap::Args)]
#[command(after_help = "Every seed is one simulated installation: the real engine on a real database in
memory; time, machines, people and faults are simulated. Faults happen for a
while, and after every commit the invariants of each run that was touched are
checked; then faults stop, and everything must end. The same seed gives the same
simulation. Exits 1 with the first that breaks.

Examples:
  repl sim --runs 1000                     a thousand seeds, one core
  repl sim --seed 1 --runs 20000 --jobs 2  as the tests do
  repl sim --seed 42 --trace               one seed, line by line
  repl sim --seed 42 --only lost:3,crash-after:17
                                           the same with these faults alone
  repl sim --runs 200 --check-determinism  each twice: they must not differ")]
pub struct SimArgs {
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many worlds, from the first seed on
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Worlds at a time, one thread each
    #[arg(long, value_name = "J", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    jobs: u64,
    /// Tell each world from its beginning to its end
    #[arg(long)]
    trace: bool,
    /// Let these faults happen and no others, e.g. lost:3,crash-after:17
    #[arg(long, value_name = "FAULT,…", value_delimiter = ',')]
    only: Option<Vec<Decision>>,
    /// Live each world twice, and compare
    #[arg(long)]
    check_determinism: bool,
    #[command(flatten)]
    json: crate::args::Json,
}

/// What all worlds together came to.
#[derive(Default)]
struct Sum {
    worlds: u64,
    runs: u64,
    executions: u64,
    commits: u64,
    lived_ms: i64,
    faults: BTreeMap<String, u64>,
    broken: Option<Report>,
}

impl Sum {
    fn add(&mut self, report: Report) {
        self.worlds += 1;
        self.runs += report.runs as u64;
        self.executions += report.executions as u64;
        self.commits += report.commits;
        self.lived_ms += report.lived_ms;
        for (_, decision) in &report.faults {
            *self.faults.entry(decision.kind.to_string()).or_default() += 1;
        }
        // Several threads may each find one: the first seed is the one that is told of.
        if !report.is_good() && self.broken.as_ref().is_none_or(|known| report.seed < known.seed) {
            self.broken = Some(report);
        }
    }
}

pub fn sim(args: &SimArgs) -> Done {
    let began = Instant::now();
    let sum = live_all(args);
    let took = began.elapsed();
    let small = sum.broken.as_ref().map(shrink);
    if args.json.json {
        show::json(&as_json(args, &sum, took, small.as_ref()))?;
    } else {
        tell(args, &sum, took, small.as_ref());
    }
    Ok(if sum.broken.is_some() { REFUSED } else { 0 })
}

fn live_all(args: &SimArgs) -> Sum {
    let (next, stop, sum) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(Sum::default()));
    let bar = progress(args);
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= args.runs {
                        break;
                    }
                    let seed = args.seed.wrapping_add(index);
                    let lived = catch_unwind(AssertUnwindSafe(|| live(args, seed)));
                    let report = lived.unwrap_or_else(|panic| {
                        let text = panic.downcast_ref::<String>().map_or("", String::as_str);
                        eprintln!("repl: the simulation of seed {seed} panicked:\n{text}");
                        resume_unwind(panic)
                    });
                    stop.fetch_or(!report.is_good(), Ordering::Relaxed);
                    let mut sum = sum.lock().expect("no panic while counting");
                    if args.trace {
                        report.trace.iter().for_each(|line| println!("{line}"));
                    }
                    sum.add(report);
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    sum.into_inner().expect("no panic while counting")
}

fn live(args: &SimArgs, seed: u64) -> Report {
    let once = || args.only.as_ref().map_or_else(|| sim::run(seed), |only| sim::run_with(seed, only));
    let report = once();
    if args.check_determinism { report.compared_with(&once()) } else { report }
}

/// On a terminal only, and on stderr.
fn progress(args: &SimArgs) -> ProgressBar {
    if args.json.json || args.trace {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(args.runs);
    let style = ProgressStyle::with_template("{pos} of {len} worlds, {per_sec}, {eta} left");
    bar.set_style(style.expect("the template is good"));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn tell(args: &SimArgs, sum: &Sum, took: Duration, small: Option<&Report>) {
    let seconds = took.as_secs_f64();
    let a_world = seconds * 1000.0 * args.jobs as f64 / sum.worlds as f64;
    let faults: u64 = sum.faults.values().sum();
    eprintln!(
        "{} worlds from seed {} in {seconds:.1} s: {:.0} a second, {a_world:.1} ms each with {} at a time",
        sum.worlds,
        args.seed,
        sum.worlds as f64 / seconds,
        args.jobs
    );
    eprintln!(
        "  {} runs executed {} times, {} commits with an audit after each, {faults} faults of {} kinds, {} days lived",
        sum.runs,
        sum.executions,
        sum.commits,
        sum.faults.len(),
        sum.lived_ms / (24 * wire::model::time::HOUR)
    );
    let Some((broken, small)) = sum.broken.as_ref().zip(small) else { return eprintln!("  nothing broke") };
    println!("{}", small.story());
    println!(
        "\nseed {} broke with {} faults, and still does with these {}:",
        broken.seed,
        broken.faults.len(),
        small.faults.len()
    );
    for (at, decision) in &small.faults {
        println!("  {:>9}.{:03}  {decision}", at / 1000, at % 1000);
    }
    println!("\nagain:  {}", replay(broken.seed, None));
    println!("small:  {}", replay(broken.seed, Some(small)));
}

fn as_json(args: &SimArgs, sum: &Sum, took: Duration, small: Option<&Report>) -> serde_json::Value {
    let broken = sum.broken.as_ref().zip(small).map(|(broken, small)| {
        serde_json::json!({
            "seed": broken.seed,
            "broken": small.broken.iter().map(|(promise, what)| format!("{promise:?}: {what}")).collect::<Vec<_>>(),
            "faults": small.decisions().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "replay": replay(broken.seed, Some(small)),
            "trace": small.trace,
        })
    });
    serde_json::json!({
        "seed": args.seed,
        "worlds": sum.worlds,
        "jobs": args.jobs,
        "seconds": took.as_secs_f64(),
        "worlds_per_second": sum.worlds as f64 / took.as_secs_f64(),
        "runs": sum.runs,
        "executions": sum.executions,
        "commits": sum.commits,
        "lived_ms": sum.lived_ms,
        "faults": sum.faults,
        "failure": broken,
    })
}

fn replay(seed: u64, small: Option<&Report>) -> String {
    let only = small.map(|small| small.decisions().iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
    match only.filter(|only| !only.is_empty()) {
        Some(only) => format!("repl sim --seed {seed} --only {only} --trace"),
        None => format!("repl sim --seed {seed} --trace"),
    }
}
