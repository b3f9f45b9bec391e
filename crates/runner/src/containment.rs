//! Chooses how the processes of a job are contained on this host, so that none outlives its keeper: tries each way, returns the best
//! that works, and says why a better one does not. Changes nothing.

use crate::cgroup::Layout;
use crate::namespace;

/// Keeps better ways from being used: for hosts where one of them disturbs the work, and for tests.
pub const CHOICE: &str = "REPL_CONTAINMENT";

/// From the best to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// A control group: any process that knows its name can end all processes in it.
    Cgroup,
    /// A PID namespace; without privileges it needs a user namespace around it.
    Namespace { user: bool },
    /// The parent-death signal for the command, and for the rest a search by descent and by environment.
    Sweep,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Containment {
    pub way: Way,
    /// The better ways, each with the reason why it is not used.
    pub passed_over: Vec<(&'static str, String)>,
    /// What was asked for and is none of the ways.
    pub nonsense: Option<String>,
}

impl Way {
    pub fn word(self) -> &'static str {
        match self {
            Way::Cgroup => "cgroup",
            Way::Namespace { .. } => "pidns",
            Way::Sweep => "sweep",
        }
    }

    /// As a keeper is told it.
    pub fn argument(self) -> &'static str {
        match self {
            Way::Namespace { user: true } => "pidns-user",
            other => other.word(),
        }
    }

    pub fn from_argument(word: &str) -> Way {
        let ways = [Way::Cgroup, Way::Namespace { user: false }, Way::Namespace { user: true }];
        ways.into_iter().find(|way| way.argument() == word).unwrap_or(Way::Sweep)
    }
}

/// The best way that may be used, as the environment says; empty when it says nothing.
pub fn choice() -> String {
    std::env::var_os(CHOICE).unwrap_or_default().to_string_lossy().into_owned()
}

/// What can be used here, with groups to match: none that would hold a job together where that was not wanted.
pub fn discover(choice: &str) -> (Containment, Layout) {
    let layout = Layout::discover();
    let mut containment = Containment { way: Way::Cgroup, passed_over: Vec::new(), nonsense: None };
    let best = match choice {
        "" | "cgroup" => Way::Cgroup,
        "pidns" => Way::Namespace { user: false },
        "sweep" => Way::Sweep,
        _ => {
            containment.nonsense = Some(choice.to_owned());
            Way::Cgroup
        }
    };
    let unwanted = || format!("{CHOICE} is {choice}");
    let group = if best > Way::Cgroup { Err(unwanted()) } else { layout.contains() };
    let Err(why) = group else { return (containment, layout) };
    containment.passed_over.push((Way::Cgroup.word(), why));
    let namespace = if best == Way::Sweep { Err(unwanted()) } else { a_namespace() };
    match namespace {
        Ok(way) => containment.way = way,
        Err(why) => {
            containment.way = Way::Sweep;
            containment.passed_over.push((Way::Namespace { user: true }.word(), why));
        }
    }
    (containment, layout.without_containing())
}

fn a_namespace() -> Result<Way, String> {
    let Err(plain) = namespace::probe(false) else { return Ok(Way::Namespace { user: false }) };
    match namespace::probe(true) {
        Ok(()) => Ok(Way::Namespace { user: true }),
        Err(error) => Err(format!("without privileges: {plain}; in a user namespace: {error}")),
    }
}

#[test]
fn a_keeper_understands_what_it_is_told() {
    for way in [Way::Cgroup, Way::Namespace { user: false }, Way::Namespace { user: true }, Way::Sweep] {
        assert_eq!(Way::from_argument(way.argument()), way);
    }
    assert_eq!(Way::from_argument(""), Way::Sweep);
}
