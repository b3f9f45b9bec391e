//! Control groups around a job and its steps: ending and freezing all processes of a step at once, and limits on memory and cpu of
//! the job. Each step has a leaf; the leaves of a job lie in one parent, which has the limits and goes with the last of them. Works
//! with version 2, version 1 and both side by side, and with none: everything here is optional and nothing fails a job.

use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use wire::runner::Limits;

/// Period of the cpu quota, in microseconds; the kernel's own default.
const PERIOD: i64 = 100_000;
/// For shares that would be less than the smallest quota of the usual period; the longest the kernel takes.
const LONG_PERIOD: i64 = 1_000_000;
const SMALLEST_QUOTA: i64 = 1_000;
/// Version 1 cannot end a group at once; a group that still forks after this many rounds is left to the sweep.
const KILL_ROUNDS: usize = 100;

/// The leaf of the step for which a parent was made.
const FIRST_LEAF: &str = "step";

/// The leaf for processes that would keep controllers from the groups beside them.
const ASIDE: &str = "remuda-aside";

/// Where groups can be made on this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    v2: Option<PathBuf>,
    freezer: Option<PathBuf>,
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    /// Where version 2 may limit a job although it does not hold it together.
    limiting: Option<PathBuf>,
}

/// The leaves of one step, written down beside it so that any process can end it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    v2: Option<PathBuf>,
    freezer: Option<PathBuf>,
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    #[serde(default)]
    limiting: Option<PathBuf>,
    /// Limits that were asked for and are not in force, and why.
    #[serde(default)]
    pub unenforced: Option<String>,
}

impl Layout {
    pub fn discover() -> Layout {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Layout::parse(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"))
    }

    /// Groups are made below the one this process is in: that is where it may.
    fn parse(mounts: &str, own: &str) -> Layout {
        let mut layout = Layout::default();
        for line in mounts.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let (left, right): (Vec<&str>, Vec<&str>) = (left.split(' ').collect(), right.split(' ').collect());
            let (Some(root), Some(at), Some(kind)) = (left.get(3), left.get(4), right.first()) else { continue };
            let options = right.get(2).copied().unwrap_or("");
            let place = |controller: &str| {
                let path = own.lines().find_map(|line| {
                    let mut parts = line.splitn(3, ':').skip(1);
                    parts.next()?.split(',').any(|named| named == controller).then(|| parts.next())?
                })?;
                // Seen from inside a container the mount shows only a part of the tree.
                let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or(path);
                Some(Path::new(at).join(below.trim_start_matches('/')))
            };
            let has = |controller: &str| options.split(',').any(|option| option == controller);
            match *kind {
                "cgroup2" => layout.v2 = place("").map(|at| beside(&at)),
                "cgroup" if has("freezer") => layout.freezer = place("freezer"),
                "cgroup" if has("memory") => layout.memory = place("memory"),
                "cgroup" if has("cpu") => layout.cpu = place("cpu"),
                _ => {}
            }
        }
        layout
    }

    /// Whether a group can really be made in which everything can be ended; why not, if it cannot.
    pub fn contains(&self) -> Result<(), String> {
        let Some(at) = self.v2.as_ref().or(self.freezer.as_ref()) else {
            return Err("no cgroup hierarchy is mounted that can hold one".to_owned());
        };
        let groups = self.make(&probe_name());
        groups.remove();
        groups.containing().map(drop).ok_or_else(|| format!("no group can be made in {}", at.display()))
    }

    /// Which version of groups can limit `memory` or `cpu` here. Only looks.
    pub fn limits(&self, controller: &str) -> Option<&'static str> {
        let writable = |at: &Path| nix::unistd::access(at, nix::unistd::AccessFlags::W_OK).is_ok();
        let v1 = if controller == "memory" { &self.memory } else { &self.cpu };
        let listed = |at: &PathBuf| {
            let known = fs::read_to_string(at.join("cgroup.controllers")).unwrap_or_default();
            known.split_ascii_whitespace().any(|known| known == controller)
        };
        if v1.as_ref().is_some_and(|at| writable(at)) {
            return Some("v1");
        }
        self.v2_place().filter(|at| listed(at) && writable(&at.join("cgroup.subtree_control"))).map(|_| "v2")
    }

    /// The same without what would hold a job together; limits stay.
    pub fn without_containing(self) -> Layout {
        Layout { limiting: self.v2, v2: None, freezer: None, ..self }
    }

    fn v2_place(&self) -> Option<&PathBuf> {
        self.v2.as_ref().or(self.limiting.as_ref())
    }

    /// Removes groups of that name's beginning in which nothing lives, left by a runner that was killed.
    pub fn remove_left(&self, prefix: &str) {
        for at in [&self.v2, &self.freezer, &self.memory, &self.cpu, &self.limiting].into_iter().flatten() {
            let entries = fs::read_dir(at).into_iter().flatten().flatten();
            for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)) {
                remove_tree(&entry.path());
            }
        }
    }

    /// A parent with one leaf, which holds a step together. Limits are put on the parent when the job is known.
    pub fn make(&self, name: &str) -> Groups {
        let mut groups = Groups { v2: self.v2.as_ref().and_then(|at| make_leaf(at, name)), ..Groups::default() };
        if groups.v2.is_none() {
            groups.freezer = self.freezer.as_ref().and_then(|at| make_leaf(at, name));
        }
        groups
    }

    /// Puts a job's limits on its groups before it begins, and notes there what cannot be enforced.
    pub fn limit(&self, groups: &mut Groups, name: &str, limits: Limits) {
        let memory = limits.memory_bytes.map(|bytes| self.limit_memory(groups, name, bytes));
        let cpu = limits.cpu_milli.map(|milli| self.limit_cpu(groups, name, milli));
        let lacks = |what: &str, done: Option<io::Result<()>>| {
            let error = done?.err()?;
            tracing::warn!(%error, "{what} cannot be limited here");
            Some(what.to_owned())
        };
        let lacking: Vec<String> = lacks("memory", memory).into_iter().chain(lacks("cpu", cpu)).collect();
        let flags: Vec<String> = lacking.iter().map(|what| format!("--{what}")).collect();
        groups.unenforced = (!lacking.is_empty()).then(|| {
            let (is, s) = if lacking.len() == 1 { ("is", "") } else { ("are", "s") };
            format!(
                "{} {is} not enforced: this user may not change a control group with the {} controller{s} there",
                flags.join(" and "),
                lacking.join(" and "),
            )
        });
    }

    fn limit_memory(&self, groups: &mut Groups, name: &str, bytes: i64) -> io::Result<()> {
        groups.memory = self.memory.as_ref().and_then(|at| {
            make_limited(at, name, |group| {
                // Always so on newer kernels: what is in the leaves counts.
                let _ = put(group, "memory.use_hierarchy", 1);
                put(group, "memory.limit_in_bytes", bytes)?;
                // Absent without swap accounting.
                let _ = put(group, "memory.memsw.limit_in_bytes", bytes);
                Ok(())
            })
        });
        if groups.memory.is_some() {
            return Ok(());
        }
        let group = self.v2_group(groups, name, "memory")?;
        put(&group, "memory.max", bytes)?;
        // Absent without swap. What may not be in memory may not be in swap instead.
        let _ = put(&group, "memory.swap.max", 0);
        // So that a leaf counts what was ended in it for want of memory, and not beside it.
        hand_down(&group, "memory");
        Ok(())
    }

    fn limit_cpu(&self, groups: &mut Groups, name: &str, milli: i64) -> io::Result<()> {
        let period = if milli * PERIOD / 1000 < SMALLEST_QUOTA { LONG_PERIOD } else { PERIOD };
        let quota = (milli * period / 1000).max(SMALLEST_QUOTA);
        groups.cpu = self.cpu.as_ref().and_then(|at| {
            make_limited(at, name, |group| {
                put(group, "cpu.cfs_period_us", period)?;
                put(group, "cpu.cfs_quota_us", quota)
            })
        });
        if groups.cpu.is_some() {
            return Ok(());
        }
        let group = self.v2_group(groups, name, "cpu")?;
        put(&group, "cpu.max", format!("{quota} {period}"))
    }

    /// The job's parent group of version 2, which may use this controller: around what holds its steps together, or made for its limits.
    fn v2_group(&self, groups: &mut Groups, name: &str, controller: &str) -> io::Result<PathBuf> {
        let none = || io::Error::other(format!("no control group with the {controller} controller can be made"));
        let at = self.v2_place().ok_or_else(none)?;
        hand_down(at, controller);
        if groups.v2.is_none() && groups.limiting.is_none() {
            groups.limiting = make_leaf(at, name);
        }
        let leaf = groups.v2.as_ref().or(groups.limiting.as_ref());
        leaf.and_then(|leaf| leaf.parent()).map(Path::to_owned).ok_or_else(none)
    }
}

/// Two may look at the same time, also two threads of one process.
fn probe_name() -> String {
    static LOOKS: AtomicU32 = AtomicU32::new(0);
    format!("remuda-probe-{}-{}", std::process::id(), LOOKS.fetch_add(1, Ordering::Relaxed))
}

/// Lets groups below use a controller. Each is asked for by itself: a host may give one and not the other. What cannot be had, or is
/// had already, is not requested, because the kernel stalls all groups meanwhile.
fn hand_down(at: &Path, controller: &str) {
    let lists = |file: &str| {
        fs::read_to_string(at.join(file)).is_ok_and(|list| list.split_whitespace().any(|it| it == controller))
    };
    if !lists("cgroup.controllers") || lists("cgroup.subtree_control") {
        return;
    }
    let ask = || put(at, "cgroup.subtree_control", format!("+{controller}"));
    let busy = ask().is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY));
    if busy && step_aside(at) {
        let _ = ask();
    }
}

/// Version 2 limits nothing below a group in which processes live: they are moved to a leaf of their own. Only where all
/// of them are this user's, in a group that this user may rearrange.
fn step_aside(at: &Path) -> bool {
    let aside = at.join(ASIDE);
    let _ = fs::create_dir(&aside);
    // More than once: one may fork while it is moved.
    for _ in 0..KILL_ROUNDS {
        let list = fs::read_to_string(at.join("cgroup.procs")).unwrap_or_default();
        if list.is_empty() {
            return true;
        }
        if !list.lines().all(is_ours) || !list.lines().all(|pid| put(&aside, "cgroup.procs", pid).is_ok()) {
            break;
        }
    }
    let _ = fs::remove_dir(&aside);
    false
}

/// True also for a process that is gone by now.
fn is_ours(pid: &str) -> bool {
    let owner = fs::metadata(format!("/proc/{pid}")).map(|process| process.uid());
    owner.map_or(true, |owner| owner == nix::unistd::geteuid().as_raw())
}

/// A runner that was moved into `remuda-aside` still makes its groups in the parent of that group.
fn beside(own: &Path) -> PathBuf {
    own.parent().filter(|_| own.ends_with(ASIDE)).unwrap_or(own).to_owned()
}

/// The leaf in a parent that is limited.
fn make_limited(at: &Path, name: &str, limit: impl Fn(&Path) -> io::Result<()>) -> Option<PathBuf> {
    let parent = make_dir(at, name)?;
    let leaf = limit(&parent).ok().and_then(|()| make_dir(&parent, FIRST_LEAF));
    if leaf.is_none() {
        let _ = fs::remove_dir(&parent);
    }
    leaf
}

fn make_leaf(at: &Path, name: &str) -> Option<PathBuf> {
    make_limited(at, name, |_| Ok(()))
}

/// From the innermost on; what still has processes stays, and all around it.
fn remove_tree(group: &Path) {
    for below in groups_below(group).iter().rev() {
        let _ = fs::remove_dir(below);
    }
}

/// The group itself and all below it, the outer before the inner: a step may have made groups of its own.
fn groups_below(group: &Path) -> Vec<PathBuf> {
    let (mut found, mut next) = (vec![group.to_owned()], 0);
    while next < found.len() {
        let entries = fs::read_dir(&found[next]).into_iter().flatten().flatten();
        let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path());
        found.extend(below.collect::<Vec<_>>());
        next += 1;
    }
    found
}

/// A group that cannot take processes is none.
fn make_dir(at: &Path, name: &str) -> Option<PathBuf> {
    let group = at.join(name);
    fs::create_dir(&group).ok()?;
    if OpenOptions::new().write(true).open(group.join("cgroup.procs")).is_ok() {
        return Some(group);
    }
    let _ = fs::remove_dir(&group);
    None
}

/// Every one of these files takes its value in a single write.
fn put(group: &Path, file: &str, value: impl ToString) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(group.join(file))?;
    io::Write::write_all(&mut file, value.to_string().as_bytes())
}

impl Groups {
    fn each(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.v2, &self.freezer, &self.memory, &self.cpu, &self.limiting].into_iter().flatten()
    }

    /// Leaves for one more step of the same job, in the same parents. None where the parents have gone meanwhile with their last step, or
    /// there are no groups at all.
    pub fn share(&self, name: &str) -> Option<Groups> {
        let beside = |leaf: &Option<PathBuf>| match leaf {
            Some(leaf) => make_dir(leaf.parent()?, name).map(Some),
            None => Some(None),
        };
        self.each().next()?;
        let mut groups = Groups { unenforced: self.unenforced.clone(), ..Groups::default() };
        let mut made = || {
            groups.v2 = beside(&self.v2)?;
            groups.freezer = beside(&self.freezer)?;
            groups.memory = beside(&self.memory)?;
            groups.cpu = beside(&self.cpu)?;
            groups.limiting = beside(&self.limiting)?;
            Some(())
        };
        if made().is_none() {
            groups.remove();
            return None;
        }
        Some(groups)
    }

    /// The one through which everything of the step can be ended and frozen.
    fn containing(&self) -> Option<&PathBuf> {
        self.v2.as_ref().or(self.freezer.as_ref())
    }

    /// The group itself, where a process can be born into it. Its door is the first.
    pub fn open(&self) -> Option<fs::File> {
        fs::File::open(self.v2.as_ref()?).ok()
    }

    /// Open files to which a process writes `0` to join.
    pub fn doors(&self) -> Vec<fs::File> {
        self.each().filter_map(|group| OpenOptions::new().write(true).open(group.join("cgroup.procs")).ok()).collect()
    }

    pub fn pids(&self) -> Vec<i32> {
        let Some(group) = self.containing() else { return Vec::new() };
        let list = |group: PathBuf| fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        let lists: Vec<String> = groups_below(group).into_iter().map(list).collect();
        lists.iter().flat_map(|list| list.lines()).filter_map(|line| line.parse().ok()).collect()
    }

    /// Ends all processes of the group, as far as it can; what is left shows in `pids`.
    pub fn kill(&self) {
        if let Some(group) = &self.v2
            && put(group, "cgroup.kill", 1).is_ok()
        {
            return;
        }
        // No frozen process forks while the list is read. Version 1 ends a frozen process only when it thaws.
        for _ in 0..KILL_ROUNDS {
            self.freeze(true);
            let pids = self.pids();
            for pid in &pids {
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid), nix::sys::signal::Signal::SIGKILL);
            }
            self.freeze(false);
            if pids.is_empty() {
                return;
            }
        }
    }

    /// True when the group does it; else the caller stops processes one by one.
    pub fn freeze(&self, on: bool) -> bool {
        match (&self.v2, &self.freezer) {
            (Some(group), _) => put(group, "cgroup.freeze", i32::from(on)).is_ok(),
            (None, Some(group)) => put(group, "freezer.state", if on { "FROZEN" } else { "THAWED" }).is_ok(),
            (None, None) => false,
        }
    }

    /// How often the kernel ended a process of the step for want of memory. A leaf that cannot count has no such file.
    pub fn out_of_memory(&self) -> u64 {
        let leaf = self.v2.as_ref().or(self.limiting.as_ref());
        let counts = |group: &&Path| group.join("memory.events").exists();
        let v2 = leaf.and_then(|leaf| [Some(leaf.as_path()), leaf.parent()].into_iter().flatten().find(counts));
        let v2 = v2.map(|group| group.join("memory.events"));
        let v1 = self.memory.as_ref().map(|group| group.join("memory.oom_control"));
        let count = |path: PathBuf| -> Option<u64> {
            let text = fs::read_to_string(path).ok()?;
            text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
        };
        [v2, v1].into_iter().flatten().filter_map(count).sum()
    }

    /// Groups with processes in them stay until a later call. A parent is removed with its last leaf.
    pub fn remove(&self) {
        for leaf in self.each() {
            remove_tree(leaf);
            let _ = leaf.parent().map(fs::remove_dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_layouts_are_read() {
        let hybrid = Layout::parse(
            "31 25 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
             32 25 0:27 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n\
             33 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
             34 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            "6:freezer:/\n4:memory:/a/b\n1:cpu,cpuacct:/\n0::/\n",
        );
        let at = |path: &str| Some(PathBuf::from(path));
        assert_eq!(hybrid.v2, at("/sys/fs/cgroup/unified/"));
        assert_eq!(hybrid.memory, at("/sys/fs/cgroup/memory/a/b"));
        assert_eq!((hybrid.freezer, hybrid.cpu), (at("/sys/fs/cgroup/freezer/"), at("/sys/fs/cgroup/cpu,cpuacct/")));

        let v2 = Layout::parse("1 1 0:1 / /sys/fs/cgroup rw - cgroup2 c rw,nsdelegate\n", "0::/user.slice/x.scope\n");
        assert_eq!(v2, Layout { v2: at("/sys/fs/cgroup/user.slice/x.scope"), ..Layout::default() });

        let inside = Layout::parse("1 1 0:1 /docker/1 /sys/fs/cgroup ro - cgroup2 c rw\n", "0::/docker/1/init\n");
        assert_eq!(inside.v2, at("/sys/fs/cgroup/init"));
        assert_eq!(Layout::parse("", ""), Layout::default());
    }

    /// Stands in for the kernel where it offers version 2 without these controllers: the files are the kernel's, what
    /// it does with them is not tested.
    #[test]
    fn version_2_is_told_its_limits_in_its_own_words() {
        let dir = tempfile::tempdir().unwrap();
        let (at, group) = (dir.path(), dir.path().join("group"));
        let leaf = group.join(FIRST_LEAF);
        fs::create_dir_all(&leaf).unwrap();
        for file in ["cgroup.subtree_control", "group/memory.max", "group/memory.swap.max", "group/cpu.max"] {
            fs::write(at.join(file), "").unwrap();
        }
        fs::write(at.join("cgroup.controllers"), "cpuset memory\n").unwrap();
        let layout = Layout { v2: Some(at.to_owned()), ..Layout::default() };
        let mut groups = Groups { v2: Some(leaf.clone()), ..Groups::default() };
        layout.limit(&mut groups, "group", Limits { cpu_milli: Some(1500), memory_bytes: Some(64 << 20) });
        let said = |file: &str| fs::read_to_string(at.join(file)).unwrap();
        assert_eq!(said("cgroup.subtree_control"), "+memory");
        assert_eq!((said("group/memory.max"), said("group/memory.swap.max")), ("67108864".to_owned(), "0".to_owned()));
        assert_eq!((said("group/cpu.max"), &groups.unenforced), ("150000 100000".to_owned(), &None));
        assert_eq!((layout.limits("memory"), layout.limits("cpu")), (Some("v2"), None));
        // A hundredth of a processor has a quota that the kernel takes.
        layout.limit(&mut groups, "group", Limits { cpu_milli: Some(1), memory_bytes: None });
        assert!(said("group/cpu.max").starts_with("1000 1000000"), "{}", said("group/cpu.max"));
        // Held together in another way, limited all the same.
        let aside = layout.without_containing();
        assert_eq!((aside.limits("memory"), aside.v2.is_none()), (Some("v2"), true));
        // What is not limited is said.
        fs::remove_file(group.join("memory.max")).unwrap();
        let mut groups = Groups { limiting: Some(leaf), ..Groups::default() };
        aside.limit(&mut groups, "group", Limits { cpu_milli: Some(1500), memory_bytes: Some(64 << 20) });
        assert!(groups.unenforced.as_ref().unwrap().starts_with("--memory is not enforced: "), "{groups:?}");
        let mut none = Groups::default();
        Layout::default().limit(&mut none, "group", Limits { cpu_milli: Some(1), memory_bytes: Some(1) });
        assert!(none.unenforced.unwrap().starts_with("--memory and --cpu are not enforced: "));
    }

    #[test]
    fn processes_step_aside_so_that_groups_beside_them_get_controllers() {
        let Some(at) = Layout::discover().v2 else {
            return crate::skip::skip("cgroup2", "there is none here");
        };
        let own = at.join(format!("remuda-test-aside-{}", std::process::id()));
        if fs::create_dir(&own).is_err() {
            return crate::skip::skip("cgroup2", &format!("no group can be made in {}", at.display()));
        }
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        put(&own, "cgroup.procs", child.id()).unwrap();
        assert!(step_aside(&own));
        let moved = fs::read_to_string(own.join(ASIDE).join("cgroup.procs")).unwrap();
        assert_eq!(moved, format!("{}\n", child.id()));
        assert_eq!(beside(&own.join(ASIDE)), own);
        // Whichever controller there is, if there is one, can be handed down now and could not before.
        let known = fs::read_to_string(own.join("cgroup.controllers")).unwrap();
        match known.split_ascii_whitespace().next() {
            Some(controller) => {
                put(&own, "cgroup.procs", child.id()).unwrap();
                assert!(put(&own, "cgroup.subtree_control", format!("+{controller}")).is_err());
                hand_down(&own, controller);
                assert_eq!(fs::read_to_string(own.join("cgroup.subtree_control")).unwrap().trim(), controller);
            }
            None => crate::skip::skip("cgroup2", "this group was given no controller to hand down"),
        }
        child.kill().unwrap();
        child.wait().unwrap();
        fs::remove_dir(own.join(ASIDE)).unwrap();
        fs::remove_dir(&own).unwrap();
    }

    #[test]
    fn a_group_ends_all_that_joined() {
        let here = Layout::discover();
        let version_1 = Layout { v2: None, ..here.clone() };
        for (layout, version) in [(here, "any"), (version_1, "1")] {
            let groups = layout.make(&format!("remuda-test-{}-{version}", std::process::id()));
            let Some(group) = groups.containing() else { continue }; // nothing to test where none can be made
            let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
            put(group, "cgroup.procs", child.id()).unwrap();
            assert_eq!(groups.pids(), [child.id() as i32]);
            assert!(groups.freeze(true));
            groups.kill();
            groups.freeze(false);
            child.wait().unwrap();
            groups.remove();
            assert!(!group.parent().unwrap().exists(), "version {version}");
        }
    }
    #[test]
    fn steps_of_a_job_have_leaves_in_one_parent_which_goes_with_the_last() {
        let layout = Layout::discover();
        let name = format!("remuda-test-shared-{}", std::process::id());
        let first = layout.make(&name);
        let Some(leaf) = first.containing().cloned() else { return };
        let second = first.share("2").unwrap();
        let parent = leaf.parent().unwrap().to_owned();
        assert_eq!(second.containing(), Some(&parent.join("2")));
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        // A step may make groups of its own.
        let inner = parent.join("2/inner");
        fs::create_dir(&inner).unwrap();
        put(&inner, "cgroup.procs", child.id()).unwrap();
        first.kill();
        assert_eq!(second.pids(), [child.id() as i32], "the one beside it lives");
        first.remove();
        assert!(parent.exists());
        second.kill();
        child.wait().unwrap();
        second.remove();
        assert!(!parent.exists());
        assert_eq!(first.share("3"), None, "gone with the last");
    }
}
