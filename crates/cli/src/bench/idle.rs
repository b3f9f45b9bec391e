//! CPU and memory of an idle control plane and of a keeper, and the duration of a small command.

use super::Plan;
use super::bare::{self, cpu_seconds, memory_mb};
use super::figure::{Figure, Goal, percentile};
use super::plane::{Plane, Setup, who_knows};
use crate::complaint::{Complaint, Done};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub async fn measure(plan: &Plan) -> Done<Vec<Figure>> {
    let plane = Plane::start(&Setup { machines: 1, ..Setup::default() }).await?;
    plane.warm_up(1).await?;
    let mut found = Repeats::default();
    for _ in plan.repeats("idle") {
        commands(&plane, plan, &mut found)?;
    }
    // A while without requests, in as many parts as there are repeats.
    let part = Duration::from_secs(20).div_f64(plan.repeats.min(5) as f64).max(Duration::from_secs(4));
    for _ in 0..plan.repeats {
        let before = cpu_seconds(plane.pid);
        let began = Instant::now();
        tokio::time::sleep(if plan.quick { part / 2 } else { part }).await;
        found.core_percent.push((cpu_seconds(plane.pid) - before) / began.elapsed().as_secs_f64() * 100.0);
        found.resident_mb.push(memory_mb(plane.pid, "Rss:"));
        keepers(&plane, &mut found);
    }
    let binary = std::fs::metadata(Plane::exe()?).map_or(f64::NAN, |found| found.len() as f64 / 1e6);
    Ok(vec![
        Figure::new("idle", "control plane, resident", "MB", &found.resident_mb).goal(Goal::AtMost(60.0)),
        Figure::new("idle", "control plane, of a core", "%", &found.core_percent).goal(Goal::AtMost(0.5)),
        Figure::new("idle", "keeper that waits, resident", "MB", &found.keeper_mb).goal(Goal::AtMost(3.0)),
        Figure::new("idle", "keeper that waits, its share (Pss)", "MB", &found.keeper_share_mb),
        Figure::new("idle", "repl ps, process start included", "ms", &found.ps_ms).goal(Goal::AtMost(30.0)),
        Figure::new("idle", "repl ps, process start included", "ms", &found.ps_ms).beside(
            "true",
            &found.ps_ms,
            &found.true_ms,
        ),
        Figure::new("idle", "the binary", "MB", &[binary]),
    ])
}

#[derive(Default)]
struct Repeats {
    resident_mb: Vec<f64>,
    core_percent: Vec<f64>,
    keeper_mb: Vec<f64>,
    keeper_share_mb: Vec<f64>,
    ps_ms: Vec<f64>,
    true_ms: Vec<f64>,
}

fn commands(plane: &Plane, plan: &Plan, found: &mut Repeats) -> Done<()> {
    let (mut ps, mut nothing) = (Vec::new(), Vec::new());
    let exe = Plane::exe()?;
    for _ in 0..plan.size(50).max(10) {
        nothing.push(time(&mut Command::new("true"))?);
        ps.push(time(Command::new(&exe).arg("ps").env("REPL_HOME", plane.home.path()).env_remove("REPL_URL"))?);
    }
    found.ps_ms.push(percentile(&ps, 0.5));
    found.true_ms.push(percentile(&nothing, 0.5));
    Ok(())
}

fn time(command: &mut Command) -> Done<f64> {
    let began = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let took = bare::ms(began);
    match status {
        Ok(status) if status.success() => Ok(took),
        Ok(status) => Err(Complaint::refused(format!("{command:?} ended with {status}"))),
        Err(error) => Err(Complaint::usage(format!("{command:?} could not be started: {error}"))),
    }
}

fn keepers(plane: &Plane, found: &mut Repeats) {
    for pid in who_knows(plane.home.path()).into_iter().filter(|pid| is_keeper(*pid)) {
        found.keeper_mb.push(memory_mb(pid, "Rss:"));
        found.keeper_share_mb.push(memory_mb(pid, "Pss:"));
    }
}

fn is_keeper(pid: i32) -> bool {
    let name = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("comm")).unwrap_or_default();
    name.trim() == "repl-keeper"
}
