//! A tree of many files that has not changed: submitted again by the real binary, beside `git status` of the same tree.

use super::figure::{Figure, Goal};
use super::plane::{Plane, Setup};
use super::{Plan, bare};
use crate::complaint::{Complaint, Done};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const GOAL_S: f64 = 0.5;
/// What was written so lately is read again, because it might still change.
const SETTLED: Duration = Duration::from_secs(3);

pub async fn measure(plan: &Plan) -> Done<Vec<Figure>> {
    let count = plan.size(10_000);
    let plane = Plane::start(&Setup { machines: 1, ..Setup::default() }).await?;
    let tree = plane.home.path().join("tree");
    plant(&tree, count)?;
    let has_git = done(Command::new("git").arg("init").arg("-q"), &tree).is_ok()
        && done(Command::new("git").args(["add", "."]), &tree).is_ok();
    tokio::time::sleep(SETTLED).await;
    submit(&plane, &tree)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in plan.repeats("files") {
        ours.push(submit(&plane, &tree)?);
        if has_git {
            let began = Instant::now();
            done(Command::new("git").args(["status", "--porcelain"]), &tree)?;
            theirs.push(bare::ms(began) / 1000.0);
        }
    }
    let mut figures = vec![
        Figure::new("files", format!("{count} unchanged files submitted again"), "s", &ours).goal(Goal::AtMost(GOAL_S)),
    ];
    if has_git {
        figures.push(Figure::new("files", format!("{count} unchanged files submitted again"), "s", &ours).beside(
            "git status",
            &ours,
            &theirs,
        ));
    }
    Ok(figures)
}

fn plant(tree: &Path, count: usize) -> Done<()> {
    let failed = |error: std::io::Error| Complaint::file("write", tree, &error);
    for number in 0..count {
        let folder = tree.join(format!("d{}", number % 100));
        std::fs::create_dir_all(&folder).map_err(failed)?;
        std::fs::write(folder.join(format!("f{number}.py")), format!("print({number})\n")).map_err(failed)?;
    }
    Ok(())
}

/// One `repl run --detach` with its process start, in seconds.
fn submit(plane: &Plane, tree: &Path) -> Done<f64> {
    let mut repl = Command::new(Plane::exe()?);
    repl.args(["run", "--detach", "--yes", "--file", ".", "-c", "true"]).env("REPL_HOME", plane.home.path());
    let began = Instant::now();
    done(&mut repl, tree)?;
    Ok(bare::ms(began) / 1000.0)
}

fn done(command: &mut Command, folder: &Path) -> Done<()> {
    let status = command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Complaint::refused(format!("{command:?} ended with {status}"))),
        Err(error) => Err(Complaint::refused(format!("{command:?}: {error}"))),
    }
}
