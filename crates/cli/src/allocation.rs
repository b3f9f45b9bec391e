//! `repl allocation`, `repl extend`, `repl release`: what a run had on a machine, and how long it is kept.

use crate::args::{Json, Listing};
use crate::complaint::{Complaint, Done};
use crate::control_plane::ControlPlane;
use crate::say::one_line;
use crate::settings::Settings;
use crate::show::{self, Table};
use crate::{lookup, quantity};
use wire::api::{AllocationView, ExtendBody};
use wire::model::time::show_duration;

#[derive(Debug, clap::Subcommand)]
pub enum Allocation {
    /// List what runs have on machines; AVAILABLE ones wait for a run
    #[command(
        alias = "list",
        after_help = "Examples:
  repl allocation ls
  repl allocation ls -a --json | jq -r '.[].workdir'"
    )]
    Ls {
        /// Also those that are over and whose folder is no longer kept
        #[arg(short, long)]
        all: bool,
        #[command(flatten)]
        listing: Listing,
    },
    /// Show one allocation
    #[command(aliases = ["describe", "inspect"], after_help = "Examples:
  repl allocation show
  repl allocation show alc_7")]
    Show {
        /// Id, beginning of an id, or the run that has it
        #[arg(default_value = lookup::LAST)]
        allocation: String,
        #[command(flatten)]
        json: Json,
    },
}

/// Keep a finished run's folder longer; alone: that of the run that ended last, 30 minutes
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl extend
  repl extend 2h
  repl extend train 8h")]
pub struct ExtendArgs {
    /// The run whose folder it is, or the id of its allocation
    #[arg(value_name = "RUN")]
    allocation: Option<String>,
    /// From now on, e.g. 2h
    #[arg(value_parser = quantity::duration, allow_negative_numbers = true)]
    duration: Option<i64>,
    #[command(flatten)]
    json: Json,
}

/// Give back the folder of a finished run before its time: it is deleted
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl release @last
  repl release train")]
pub struct ReleaseArgs {
    /// The run whose folder it is, or the id of its allocation
    #[arg(value_name = "RUN")]
    allocation: String,
    #[command(flatten)]
    json: Json,
}

pub async fn allocation(settings: &Settings, command: Allocation) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    match command {
        Allocation::Ls { all, listing } => list(&plane, all, listing).await,
        Allocation::Show { allocation, json } => {
            let id = lookup::allocation(&plane, &allocation).await?;
            let view: AllocationView = plane.get(&format!("/allocations/{id}")).await?;
            if json.json { show::json(&view) } else { Ok(print(&view)) }
        }
    }
}

pub async fn extend(settings: &Settings, args: ExtendArgs) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let (said, duration_ms) = meant(args.allocation, args.duration);
    let id = match said {
        Some(said) => lookup::allocation(&plane, &said).await.map_err(|complaint| match said.parse::<u64>() {
            Ok(number) => complaint.fix(format!("a duration has a unit: repl extend {number}h, or {number}m")),
            Err(_) => complaint,
        })?,
        None => most_recent(&plane).await?,
    };
    let view: AllocationView = plane.post(&format!("/allocations/{id}/extend"), &ExtendBody { duration_ms }).await?;
    if let Some(note) = capped(&view, duration_ms, show::now_ms()) {
        eprintln!("repl: {note}");
    }
    answer(&view, args.json)
}

/// What became of a duration that was longer than a folder may be kept.
fn capped(view: &AllocationView, asked_ms: Option<i64>, now: i64) -> Option<String> {
    /// Clocks of two machines, and the way of the answer.
    const SLACK_MS: i64 = 60_000;
    let (asked, until) = (asked_ms?, view.debug_hold_until.filter(|_| view.held)?);
    let wanted = now.saturating_add(asked);
    (until < wanted.saturating_sub(SLACK_MS)).then(|| {
        format!(
            "{} is more than a folder may be kept: capped, kept until {} ({})",
            show_duration(asked),
            show::clock(until),
            show::until(until)
        )
    })
}

pub async fn release(settings: &Settings, args: ReleaseArgs) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let id = lookup::allocation(&plane, &args.allocation).await?;
    let view: AllocationView = plane.post(&format!("/allocations/{id}/release"), &serde_json::json!({})).await?;
    answer(&view, args.json)
}

/// `extend 2h` is a duration, not an allocation.
fn meant(allocation: Option<String>, duration: Option<i64>) -> (Option<String>, Option<i64>) {
    match (&allocation, duration) {
        (Some(text), None) => match quantity::duration(text) {
            Ok(ms) => (None, Some(ms)),
            Err(_) => (allocation, None),
        },
        _ => (allocation, duration),
    }
}

async fn most_recent(plane: &ControlPlane) -> Done<String> {
    let all: Vec<AllocationView> = plane.list("/allocations", 1000).await?;
    for (id, run) in held(&all) {
        // A run that was deleted is not what its user has just been looking at.
        if lookup::is_there(plane, lookup::RUN, run).await? {
            return Ok(id.to_owned());
        }
    }
    Err(Complaint::refused("no folder is kept now, so there is nothing to extend").fix(
        "a run's folder is kept for a while after its end, longer with `repl run --hold`; `repl allocation ls -a` lists them",
    ))
}

/// Allocations that are held and the runs that had them, the one that ended last first.
fn held(all: &[AllocationView]) -> Vec<(&str, &str)> {
    let mut held: Vec<_> = all.iter().filter(|it| it.held && it.completed_at.is_some()).collect();
    held.sort_by_key(|it| std::cmp::Reverse(it.completed_at));
    held.iter().filter_map(|it| Some((it.id.as_str(), it.run.as_deref()?))).collect()
}

async fn list(plane: &ControlPlane, all: bool, listing: Listing) -> Done {
    let mut found: Vec<AllocationView> = plane.list("/allocations", listing.limit).await?;
    found.retain(|it| all || it.held || matches!(it.status.as_str(), "AVAILABLE" | "CLAIMED" | "ACTIVE"));
    if listing.json {
        return show::json(&found);
    }
    let mut table = Table::new(["ID", "STATUS", "INSTANCE", "RUN", "KEPT", "AGE", "FOLDER"])
        .without_if_narrow(&["AGE", "INSTANCE"])
        .with_paths();
    for it in &found {
        table.row([
            it.id.clone(),
            show::status(&it.status),
            it.instance.clone(),
            show::or_dash(it.run.as_ref()),
            kept(it),
            show::ago(it.created_at),
            it.path.clone().unwrap_or_else(|| it.workdir.clone()),
        ]);
    }
    table.print("no allocations (-a shows those that are over)");
    Ok(0)
}

fn print(it: &AllocationView) -> u8 {
    show::pairs(&[
        ("id", Some(it.id.clone())),
        ("status", Some(show::status(&it.status))),
        ("instance", Some(it.instance.clone())),
        ("run", it.run.clone()),
        ("job", it.job.clone()),
        ("manifest", it.manifest.clone()),
        ("user", Some(it.user.clone())),
        ("folder", Some(it.path.clone().unwrap_or_else(|| it.workdir.clone()))),
        ("kept", Some(kept(it))),
        ("created", Some(format!("{} ({})", show::clock(it.created_at), show::ago(it.created_at)))),
        ("completed", it.completed_at.map(show::clock)),
    ]);
    0
}

fn answer(view: &AllocationView, json: Json) -> Done {
    if json.json {
        return show::json(view);
    }
    let whose = view.run.as_ref().unwrap_or(&view.id);
    let place = one_line(view.path.as_ref().unwrap_or(&view.workdir));
    let line = match view.debug_hold_until.filter(|_| view.held) {
        Some(until) => {
            format!("the folder of {whose} is kept {}, until {}: {place}", show::until(until), show::clock(until))
        }
        None => format!("the folder of {whose} is no longer kept: {place}"),
    };
    println!("{}", show::wrapped(&line, 0, 2));
    Ok(0)
}

fn kept(it: &AllocationView) -> String {
    show::or_dash(it.debug_hold_until.filter(|_| it.held).map(show::until))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(until: i64, held: bool) -> AllocationView {
        AllocationView {
            id: "alc_1".into(),
            instance: "ins_1".into(),
            job: None,
            run: None,
            manifest: None,
            status: "COMPLETE".into(),
            user: "u".into(),
            workdir: "w".into(),
            path: None,
            debug_hold_until: Some(until),
            held,
            created_at: 0,
            completed_at: Some(0),
        }
    }

    #[test]
    fn only_what_is_held_is_extended_unasked() {
        let of = |id: &str, held: bool, completed_at| AllocationView {
            id: id.into(),
            run: Some(format!("run of {id}")),
            completed_at,
            ..view(5, held)
        };
        let all = [
            of("alc_1", true, Some(1)),
            of("alc_2", true, Some(2)),
            of("alc_3", false, Some(3)),
            of("alc_4", false, None),
        ];
        assert_eq!(held(&all), [("alc_2", "run of alc_2"), ("alc_1", "run of alc_1")], "the last first");
        assert_eq!(held(&all[2..]), []);
    }

    #[test]
    fn a_duration_that_was_capped_is_told() {
        let (hour, day) = (3_600_000, 86_400_000);
        let said = capped(&view(day, true), Some(9999 * day), 0).unwrap();
        assert!(said.starts_with("9999d is more") && said.contains("kept until 1970-01-02 00:00:00Z"), "{said}");
        assert_eq!(capped(&view(2 * hour, true), Some(2 * hour), 0), None);
        assert_eq!(capped(&view(2 * hour, true), Some(hour), 0), None, "an extension never shortens");
        assert_eq!(capped(&view(hour, true), None, 0), None);
        assert_eq!(capped(&view(0, false), Some(day), 0), None);
    }

    #[test]
    fn a_lone_word_may_be_a_duration() {
        let word = |text: &str| Some(text.to_owned());
        assert_eq!(meant(None, None), (None, None));
        assert_eq!(meant(word("2h"), None), (None, Some(7_200_000)));
        assert_eq!(meant(word("alc_7"), None), (word("alc_7"), None));
        assert_eq!(meant(word("alc_7"), Some(5)), (word("alc_7"), Some(5)));
    }
}
