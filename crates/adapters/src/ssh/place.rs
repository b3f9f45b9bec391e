//! Folders on a host: `~/.repl/bin/<hash>/repl` for all, and `~/.repl/<control_id>/<host>/` with the machines of one host. A home may be
//! shared by several hosts, so each has its own folder, which says which host it is: a name that leads to another one is noticed.

use super::remote::Ask;
use crate::local::{Trace, at, remove_tree};
use model::{Trouble, TroubleKind, names};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Which host a folder belongs to.
const HOST_FILE: &str = ".host.json";
const RELAYS: &str = ".relay";
const BINARIES: &str = "bin";
/// The kernel's limit for a socket's path, with its final zero.
const LONGEST_SOCKET: usize = 107;
const RELAY_ENDS_WITHIN: Duration = Duration::from_secs(3);

pub struct Place {
    base: PathBuf,
    host: String,
    mark: String,
}

/// What stays the same when a host is started again, and differs between two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    machine: String,
    hostname: String,
}

impl Identity {
    fn own() -> Identity {
        let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default().trim().to_owned();
        let hostname =
            nix::unistd::gethostname().map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned());
        Identity { machine, hostname }
    }
}

impl Place {
    pub fn open(ask: &Ask) -> Result<Place, Trouble> {
        let base = match &ask.dir {
            Some(dir) => dir.clone(),
            None => match std::env::home_dir().filter(|home| home.is_absolute()) {
                Some(home) => home.join(".repl"),
                None => {
                    let what = "the user has no home on this host: set `dir` to a folder of their own";
                    return Err(Trouble::new(TroubleKind::InvalidSpec, what));
                }
            },
        };
        let is_name = |text: &str| !text.is_empty() && !text.starts_with('.') && !text.contains('/');
        if !is_name(&ask.host) || !is_name(&ask.mark) {
            return Err(Trouble::new(TroubleKind::InvalidSpec, "a host's folder is one name"));
        }
        Ok(Place { base, host: ask.host.clone(), mark: ask.mark.clone() })
    }

    /// Where the machines of this one's control plane are, on this host.
    pub fn root_of(&self, name: &str) -> Result<PathBuf, Trouble> {
        match names::parse(name) {
            Some(parsed) => Ok(self.base.join(parsed.control_id).join(&self.host)),
            None => Err(Trouble::new(TroubleKind::InvalidSpec, format!("`{name}` is not the name of an instance"))),
        }
    }

    /// The roots of all control planes that use this host by this name.
    pub fn roots(&self) -> Result<Vec<PathBuf>, Trouble> {
        let mut roots: Vec<PathBuf> =
            self.control_planes()?.into_iter().map(|folder| folder.join(&self.host)).collect();
        roots.retain(|root| root.is_dir());
        Ok(roots)
    }

    fn control_planes(&self) -> Result<Vec<PathBuf>, Trouble> {
        let entries = match std::fs::read_dir(&self.base) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(at(&self.base)(error)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(at(&self.base))?;
            let known =
                entry.file_name().to_str().is_some_and(|name| names::parse(&format!("repl-{name}-none-1")).is_some());
            if known && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.push(entry.path());
            }
        }
        found.sort();
        Ok(found)
    }

    /// Makes the root and writes down whose it is. Refused while machines of another host may live in it.
    pub fn sign(&self, name: &str) -> Result<(), Trouble> {
        let root = self.root_of(name)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&root).map_err(at(&root))?;
        let own = Identity::own();
        match self.signed(&root)? {
            Some(known) if known == own => return Ok(()),
            Some(_) if holds_machines(&root)? => return Err(self.elsewhere(&root)),
            _ => {}
        }
        let (file, new) = (root.join(HOST_FILE), root.join(format!("{HOST_FILE}.{}", std::process::id())));
        let written = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new);
        let written = written.and_then(|mut file| file.write_all(&serde_json::to_vec(&own)?));
        written.and_then(|()| std::fs::rename(&new, &file)).map_err(at(&file))
    }

    /// What is said about a machine counts only where it is.
    pub fn check(&self, name: &str) -> Result<(), Trouble> {
        let root = self.root_of(name)?;
        match self.signed(&root)? {
            Some(known) if known != Identity::own() && root.join(name).is_dir() => Err(self.elsewhere(&root)),
            _ => Ok(()),
        }
    }

    fn signed(&self, root: &Path) -> Result<Option<Identity>, Trouble> {
        match std::fs::read(root.join(HOST_FILE)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(at(root)(error)),
        }
    }

    fn elsewhere(&self, root: &Path) -> Trouble {
        let known = self.signed(root).ok().flatten().map_or_else(String::new, |known| known.hostname);
        let what = format!(
            "this name led to {known} before and leads to {} now, which shares its home: give each host a name of its own in `hosts`",
            Identity::own().hostname
        );
        Trouble { retry: true, ..Trouble::new(TroubleKind::Network, what) }
    }

    pub fn machine(&self, name: &str) -> Result<PathBuf, Trouble> {
        Ok(self.root_of(name)?.join(name))
    }

    /// Where the runner of this machine dials its relay.
    pub fn relay_socket(&self, name: &str) -> Result<PathBuf, Trouble> {
        let socket = self.relay_file(name, "sock")?;
        if socket.as_os_str().len() > LONGEST_SOCKET {
            let what = format!("{} is too long for a socket: set `dir` to a shorter folder", socket.display());
            return Err(Trouble::new(TroubleKind::InvalidSpec, what));
        }
        Ok(socket)
    }

    /// Short, because sockets are: the machine's own number and the mark of its host.
    fn relay_file(&self, name: &str, what: &str) -> Result<PathBuf, Trouble> {
        let root = self.root_of(name)?;
        let number = name.rsplit('-').next().unwrap_or(name);
        let folder = root.parent().unwrap_or(&root).join(RELAYS);
        Ok(folder.join(format!("{}-{number}.{what}", self.mark)))
    }

    /// Takes the place of the relay that was there before.
    pub fn begin_relay(&self, name: &str) -> Result<PathBuf, Trouble> {
        let socket = self.relay_socket(name)?;
        let folder = socket.parent().unwrap_or(&self.base);
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(at(folder))?;
        self.end_relay(name)?;
        let trace = Trace::of(std::process::id() as i32).ok().flatten();
        let file = self.relay_file(name, "json")?;
        std::fs::write(&file, serde_json::to_vec(&trace).unwrap_or_default()).map_err(at(&file))?;
        Ok(socket)
    }

    /// Whether folders can be made here, and a socket if runners here need one. Nothing of the trial stays.
    pub fn try_out(&self, control_id: &str, relayed: bool) -> Result<(), Trouble> {
        let name = format!("{}-{control_id}-none-1", names::PREFIX);
        let folder = self.root_of(&name)?.parent().unwrap_or(&self.base).join(RELAYS);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(at(&folder))?;
        let socket = folder.join(format!("{}-try.{}", self.mark, std::process::id()));
        let tried = match relayed {
            true => std::os::unix::net::UnixListener::bind(&socket).map(drop),
            false => std::fs::write(&socket, b"try"),
        };
        let _ = std::fs::remove_file(&socket);
        self.tidy(control_id);
        tried.map_err(|error| {
            let trouble = at(&socket)(error);
            if !relayed || trouble.kind == TroubleKind::DiskFull {
                return trouble;
            }
            let what = format!(
                "runners here have no way back to us: they cannot reach public_url, and no relay can listen in {} ({}): set `dir` to a \
                 folder of a local file system",
                folder.display(),
                trouble.what
            );
            Trouble::new(TroubleKind::InvalidSpec, what)
        })
    }

    pub fn end_relay(&self, name: &str) -> Result<(), Trouble> {
        let (file, socket) = (self.relay_file(name, "json")?, self.relay_file(name, "sock")?);
        let trace = std::fs::read(&file).ok().and_then(|bytes| serde_json::from_slice::<Trace>(&bytes).ok());
        if let Some(living) = trace.and_then(|trace| trace.hold().ok().flatten()) {
            let _ = living.signal(Signal::SIGTERM);
            let _ = living.ends_within(RELAY_ENDS_WITHIN);
        }
        remove_tree(&file)?;
        remove_tree(&socket)
    }

    /// A machine is gone, and with the last one of its control plane here the folders around it.
    pub fn tidy_after(&self, name: &str) {
        if let Some(parsed) = names::parse(name) {
            self.tidy(&parsed.control_id);
        }
    }

    /// Folders of a control plane that nothing needs any more go; what is still needed stays as it is.
    fn tidy(&self, control_id: &str) {
        let plane = self.base.join(control_id);
        let root = plane.join(&self.host);
        if root.is_dir() && holds_machines(&root).is_ok_and(|holds| !holds) {
            let _ = remove_tree(&root);
        }
        let _ = std::fs::remove_dir(plane.join(RELAYS));
        let _ = std::fs::remove_dir(&plane);
    }

    /// Binaries are shared by all control planes and hosts of this home: they go with the last.
    pub fn leave(&self, control_id: &str) -> Result<(), Trouble> {
        self.root_of(&format!("{}-{control_id}-none-1", names::PREFIX))?;
        self.tidy(control_id);
        let root = self.base.join(control_id).join(&self.host);
        if root.is_dir() {
            let what = format!("{} still has machines: terminate and release them first", root.display());
            return Err(Trouble::new(TroubleKind::InvalidSpec, what));
        }
        if self.control_planes()?.is_empty() {
            remove_tree(&self.base.join(BINARIES))?;
            let _ = std::fs::remove_dir(&self.base);
        }
        Ok(())
    }
}

/// Whatever has a name of ours counts, be it terminated: its workdirs may be held.
fn holds_machines(root: &Path) -> Result<bool, Trouble> {
    let entries = std::fs::read_dir(root).map_err(at(root))?;
    Ok(entries.flatten().any(|entry| entry.file_name().to_str().is_some_and(|name| names::parse(name).is_some())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::remote::Deed;

    const NAME: &str = "repl-c0nf0rm1-7-1";

    fn place(base: &Path, host: &str) -> Place {
        let ask = Ask {
            host: host.into(),
            mark: "m".into(),
            dir: Some(base.to_owned()),
            slots: 1,
            deed: Deed::Leave { control_id: String::new() },
        };
        Place::open(&ask).unwrap()
    }

    #[test]
    fn a_name_that_leads_to_another_host_is_noticed() {
        let base = tempfile::tempdir().unwrap();
        let place = place(base.path(), "box");
        place.sign(NAME).unwrap();
        let root = place.root_of(NAME).unwrap();
        let other = Identity { machine: "m".into(), hostname: "login2".into() };
        std::fs::write(root.join(HOST_FILE), serde_json::to_vec(&other).unwrap()).unwrap();
        place.check(NAME).expect("there is no such machine");
        std::fs::create_dir(root.join(NAME)).unwrap();
        assert!(place.check(NAME).unwrap_err().what.contains("login2"));
        assert!(place.sign(NAME).unwrap_err().what.contains("login2"));
        std::fs::remove_dir(root.join(NAME)).unwrap();
        place.sign(NAME).expect("nothing of the other host is left");
        place.check(NAME).unwrap();
    }

    #[test]
    fn two_hosts_of_one_home_have_a_folder_each_and_leave_nothing() {
        let base = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|host| place(base.path(), host));
        a.sign(NAME).unwrap();
        b.sign(NAME).unwrap();
        std::fs::create_dir(a.machine(NAME).unwrap()).unwrap();
        std::fs::create_dir_all(base.path().join("bin/hash")).unwrap();
        assert_ne!(a.machine(NAME).unwrap(), b.machine(NAME).unwrap());
        assert!(a.leave("c0nf0rm1").unwrap_err().what.contains("still has machines"));
        b.leave("c0nf0rm1").unwrap();
        assert!(base.path().join("bin").exists(), "the other host needs it");
        std::fs::remove_dir(a.machine(NAME).unwrap()).unwrap();
        a.leave("../bin").expect_err("no control plane is named so");
        a.leave("c0nf0rm1").unwrap();
        assert!(!base.path().exists());
    }

    #[test]
    fn a_host_where_no_relay_can_listen_has_no_way_back_unless_its_runners_dial() {
        let base = tempfile::tempdir().unwrap();
        let place = place(base.path(), "box");
        let folder = base.path().join("c0nf0rm1").join(RELAYS);
        let in_the_way = folder.join(format!("m-try.{}", std::process::id()));
        std::fs::create_dir_all(&in_the_way).unwrap();
        let trouble = place.try_out("c0nf0rm1", true).unwrap_err();
        assert_eq!(trouble.kind, TroubleKind::InvalidSpec);
        for part in ["runners here have no way back to us", folder.to_str().unwrap(), "set `dir`"] {
            assert!(trouble.what.contains(part), "{trouble}");
        }
        let dials = place.try_out("c0nf0rm1", false).unwrap_err();
        assert!(!dials.what.contains("way back"), "{dials}");
        std::fs::remove_dir(&in_the_way).unwrap();
        place.try_out("c0nf0rm1", true).unwrap();
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_refused() {
        let long = Path::new("/x").join("y".repeat(100));
        assert!(place(&long, "box").relay_socket(NAME).unwrap_err().what.contains("`dir`"));
    }
}
