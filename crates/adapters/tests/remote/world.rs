//! Repositories to push, and a folder that counts, fails or does something else at a chosen step.

use adapters::remote::bucket::{Bucket, Listed};
use adapters::remote::{Access, Folder, Opened, Remote, RemoteError, Source};
use calls::name::Name;
use calls::reach::{Closure, available};
use calls::record::{Commit, Dag, Node, Tree};
use calls::refs::RefName;
use calls::uri::Blob;
use calls::{CommitId, DagId, Memory, NodeId, Object, Read, Reference, TreeId, Value};
use model::{Trouble, TroubleKind};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

pub const LIMIT: usize = 1 << 21;

pub fn head(name: &str) -> RefName {
    RefName::Head(Name::new(name).unwrap())
}

/// Objects and blobs on this side.
#[derive(Clone, Default)]
pub struct Origin {
    pub memory: Memory,
    pub blobs: BTreeMap<Blob, Vec<u8>>,
}

impl Read for Origin {
    type Error = Infallible;
    fn record(&mut self, of: Reference) -> Result<Option<Vec<u8>>, Infallible> {
        self.memory.record(of)
    }
    fn has_blob(&mut self, blob: Blob) -> Result<bool, Infallible> {
        Ok(self.blobs.contains_key(&blob))
    }
}

impl Source for Origin {
    fn blob(&mut self, blob: Blob) -> Result<Option<Box<dyn io::Read + '_>>, Infallible> {
        Ok(self.blobs.get(&blob).map(|bytes| Box::new(bytes.as_slice()) as Box<dyn io::Read>))
    }
}

impl Origin {
    fn literal(&mut self, value: &Value) -> NodeId {
        let mut records = Vec::new();
        let value = value.element(&mut records).unwrap();
        self.memory.add(records);
        NodeId(self.memory.put(&Object::Node(Node::Literal { value })).id)
    }

    /// A commit whose dag has these numbers as nodes: so many objects, and a dag, a tree and the commit itself.
    pub fn commit(&mut self, numbers: std::ops::Range<i64>, parents: &[CommitId]) -> CommitId {
        let nodes: Vec<NodeId> = numbers.map(|number| self.literal(&Value::Int(number))).collect();
        self.commit_of(&nodes, parents)
    }

    pub fn commit_of(&mut self, nodes: &[NodeId], parents: &[CommitId]) -> CommitId {
        let names = nodes.iter().enumerate().map(|(at, node)| (Name::new(&format!("n{at}")).unwrap(), *node)).collect();
        let dag = DagId(self.memory.put(&Object::Dag(Dag { root: nodes[0], names })).id);
        let tree = Tree { dags: [(Name::new("it").unwrap(), dag)].into() };
        let tree = TreeId(self.memory.put(&Object::Tree(tree)).id);
        CommitId(self.memory.put(&Object::Commit(Commit { tree, parents: parents.to_vec(), execs: None })).id)
    }

    pub fn blob(&mut self, bytes: &[u8]) -> NodeId {
        let blob = Blob::of(bytes);
        self.blobs.insert(blob, bytes.to_vec());
        self.literal(&Value::Uri(blob.uri()))
    }
}

pub fn remote(folder: &Path) -> Remote {
    Remote::at(Arc::new(Folder::new(folder)), Access::Write).unwrap()
}

/// Everything below a ref of the remote, each record and blob read and checked.
pub fn whole(opened: &mut Opened) -> Closure {
    let commit = opened.commit;
    let closure = available(opened, commit.into(), LIMIT).unwrap();
    for blob in &closure.blobs {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut opened.blob(*blob).unwrap(), &mut bytes).unwrap();
        assert_eq!(Blob::of(&bytes), *blob);
    }
    closure
}

/// The remote has the commit under this name, and everything below.
pub fn check(remote: &Remote, name: &RefName, commit: CommitId, origin: &mut Origin) {
    let mut opened = remote.fetch(name).unwrap();
    assert_eq!(opened.commit, commit);
    assert_eq!(whole(&mut opened), available(origin, commit.into(), LIMIT).unwrap());
}

/// All files of the folder look as if they were written so many days ago.
pub fn age(folder: &Path, days: u64) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_dir() {
            age(&entry.path(), days);
        } else {
            let then = std::time::SystemTime::now() - std::time::Duration::from_secs(days * 86_400);
            std::fs::File::options().append(true).open(entry.path()).unwrap().set_modified(then).unwrap();
        }
    }
}

pub fn now_ms() -> i64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as i64
}

pub type Hook = Box<dyn FnOnce() + Send>;

/// Before which operation something else happens.
pub enum At {
    Number(usize),
    /// The first that begins so.
    Line(&'static str),
}

/// A folder that counts its operations; at a chosen one it fails from then on, or does something else first.
pub struct Watched {
    pub inner: Folder,
    pub done: AtomicUsize,
    /// At this operation and ever after, it fails: a killed process does nothing more.
    pub cut_at: Option<usize>,
    /// The operation at which it is cut still has its effect.
    pub with_effect: bool,
    /// The answer to operations that begin so is lost, with or without their effect.
    pub lost: Option<&'static str>,
    pub hook: Mutex<Option<(At, Hook)>>,
    pub log: Mutex<Vec<String>>,
}

impl Watched {
    pub fn new(folder: &Path) -> Watched {
        Watched {
            inner: Folder::new(folder),
            done: AtomicUsize::new(0),
            cut_at: None,
            with_effect: false,
            lost: None,
            hook: Mutex::default(),
            log: Mutex::default(),
        }
    }
    pub fn before(self, operation: At, hook: impl FnOnce() + Send + 'static) -> Watched {
        *self.hook.lock().unwrap() = Some((operation, Box::new(hook)));
        self
    }
    pub fn operations(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }
    pub fn begin_again(&self) {
        self.done.store(0, Ordering::SeqCst);
        self.log.lock().unwrap().clear();
    }
    fn written(&self, prefix: &str) -> usize {
        self.log.lock().unwrap().iter().filter(|line| line.starts_with(prefix)).count()
    }
    /// Segments, manifests, blobs and refs that were written.
    pub fn writes(&self) -> [usize; 4] {
        ["create segments/", "create manifests/", "create blobs/", "swap refs/"].map(|prefix| self.written(prefix))
    }

    fn does<T>(&self, what: &str, key: &str, act: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
        let number = self.done.fetch_add(1, Ordering::SeqCst);
        let line = format!("{what} {key}");
        let hook = self.hook.lock().unwrap().take_if(|(at, _)| match at {
            At::Number(at) => *at == number,
            At::Line(start) => line.starts_with(*start),
        });
        if let Some((_, hook)) = hook {
            hook();
        }
        let is_lost = self.lost.is_some_and(|start| line.starts_with(start));
        self.log.lock().unwrap().push(line);
        match self.cut_at {
            Some(at) if number > at || (number == at && !self.with_effect) => Err(cut()),
            Some(at) if number == at => act().and(Err(cut())),
            None if is_lost && self.with_effect => act().and(Err(cut())),
            None if is_lost => Err(cut()),
            _ => act(),
        }
    }
}

fn cut() -> Trouble {
    Trouble::new(TroubleKind::Network, "cut").perhaps()
}

impl Bucket for Watched {
    fn whole(&self, key: &str, most: u64) -> Result<Option<Vec<u8>>, Trouble> {
        self.does("whole", key, || self.inner.whole(key, most))
    }
    fn range(&self, key: &str, at: u64, bytes: u64) -> Result<Option<Vec<u8>>, Trouble> {
        self.does("range", key, || self.inner.range(key, at, bytes))
    }
    fn create(&self, key: &str, bytes: &[u8]) -> Result<(), Trouble> {
        self.does("create", key, || self.inner.create(key, bytes))
    }
    fn create_from(&self, key: &str, from: &mut dyn io::Read, bytes: u64) -> Result<(), Trouble> {
        self.does("create", key, || self.inner.create_from(key, from, bytes))
    }
    fn swap(&self, key: &str, from: Option<&[u8]>, to: &[u8]) -> Result<bool, Trouble> {
        self.does("swap", key, || self.inner.swap(key, from, to))
    }
    fn remove(&self, key: &str, from: &[u8]) -> Result<bool, Trouble> {
        self.does("remove", key, || self.inner.remove(key, from))
    }
    fn list(&self, folder: &str) -> Result<Vec<Listed>, Trouble> {
        self.does("list", folder, || self.inner.list(folder))
    }
    fn delete(&self, key: &str) -> Result<(), Trouble> {
        self.does("delete", key, || self.inner.delete(key))
    }
}

/// In memory where there is such a place: remotes sync every file, and these tests write thousands.
pub fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

pub fn is_cut(error: &RemoteError) -> bool {
    matches!(error, RemoteError::Trouble(trouble) if trouble.what == "cut")
}
