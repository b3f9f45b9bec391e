//! Arms this process's crash points from its environment: `REPL_CRASH=server/run.submit:before@MARK` kills it there,
//! `REPL_STOP=…` stops it there. Does nothing unless one of them is set.

use crate::args::Json;
use crate::complaint::Done;
use crate::show;
use nix::sys::signal::{Signal, raise};
use std::fs::OpenOptions;
use std::path::PathBuf;
use wire::model::fault::{self, Moment, POINTS, Role};

/// List the points at which REPL_CRASH can kill a process, and which processes reach them
#[derive(Debug, clap::Args)]
pub struct PointsArgs {
    #[command(flatten)]
    json: Json,
}

pub fn points(args: &PointsArgs) -> Done {
    let roles = |roles: &[Role]| roles.iter().map(Role::to_string).collect::<Vec<_>>();
    if args.json.json {
        let rows: Vec<_> =
            POINTS.iter().map(|(name, by)| serde_json::json!({"name": name, "roles": roles(by)})).collect();
        return show::json(&rows);
    }
    for (name, by) in POINTS {
        println!("{name}  {}", roles(by).join(" "));
    }
    Ok(0)
}

/// `roles` is what this process is.
pub fn arm(roles: &'static [Role]) {
    let signals = [Signal::SIGKILL, Signal::SIGSTOP];
    let armed: Vec<Armed> = fault::VARIABLES
        .iter()
        .zip(signals)
        .filter_map(|(variable, signal)| Some((std::env::var(variable).ok()?, signal)))
        .flat_map(|(text, signal)| text.split(',').filter_map(|one| Armed::parse(one, signal)).collect::<Vec<_>>())
        .filter(|armed| armed.role.as_ref().is_none_or(|wanted| roles.iter().any(|role| role.to_string() == *wanted)))
        .collect();
    if !armed.is_empty() {
        fault::arm(move |name, moment| armed.iter().for_each(|armed| armed.reached(name, moment)));
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Armed {
    role: Option<String>,
    name: String,
    moment: Moment,
    /// Made when it goes off: where it is, that has happened, and does not happen to the next process.
    mark: Option<PathBuf>,
    signal: Signal,
}

impl Armed {
    /// `[ROLE/]NAME:before|after[@MARK]`; several are separated by commas.
    fn parse(text: &str, signal: Signal) -> Option<Armed> {
        let (text, mark) = text.split_once('@').map_or((text, None), |(text, mark)| (text, Some(mark.into())));
        let (place, moment) = text.rsplit_once(':')?;
        let moment = [Moment::Before, Moment::After].into_iter().find(|known| known.to_string() == moment)?;
        let (role, name) = place.split_once('/').map_or((None, place), |(role, name)| (Some(role.to_owned()), name));
        Some(Armed { role, name: name.to_owned(), moment, mark, signal })
    }

    fn reached(&self, name: &str, moment: Moment) {
        if self.name != name || self.moment != moment {
            return;
        }
        // The process that creates the mark file dies; all others find the file and go on.
        let first = |mark: &PathBuf| OpenOptions::new().write(true).create_new(true).open(mark).is_ok();
        if self.mark.as_ref().is_none_or(first) {
            // To this very thread, so that it is the first to stop: a signal to the process may be taken by another thread, and
            // this one would meanwhile go on past the point.
            let _ = raise(self.signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_named_by_role_and_moment() {
        let parse = |text| Armed::parse(text, Signal::SIGKILL);
        let armed = parse("server/run.submit:before@/tmp/mark").unwrap();
        assert_eq!(
            (armed.role.as_deref(), armed.name.as_str(), armed.moment),
            (Some("server"), "run.submit", Moment::Before)
        );
        assert_eq!(armed.mark, Some(PathBuf::from("/tmp/mark")));
        let armed = parse("log.append:after").unwrap();
        assert_eq!((armed.role, armed.name.as_str(), armed.mark), (None, "log.append", None));
        assert_eq!((parse("submit"), parse("submit:during")), (None, None));
    }
}
