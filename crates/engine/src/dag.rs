//! Refs and objects of an org as people see and change them: heads, what a remote's heads were, the log of commits, and the transfer of
//! records. Heads and refs of remotes alone can be written here; the index is written by executions only, and no head answers a call.

mod shown;

use crate::cache::index_of;
use crate::{Engine, cached_run};
pub use calls::Id;
use calls::history::is_fast_forward;
use calls::id::Prefix;
use calls::name::Name;
use calls::reach::{Closure, closure};
use calls::record::Commit;
use calls::refs::{RefName, Swap};
use calls::{CommitId, Fault, Kind, Object, Read as _, Reference, read};
use model::{Failure, OrgId, Refused};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use store::object::Objects;
use store::{Lane, Tx};

/// What a person calls the index of the project.
pub const INDEX: &str = "index";
/// Objects below one commit that is sent or named by a ref.
const MAX_OBJECTS: usize = 5_000_000;
/// Commits of a log, however it is paged.
const MAX_LOG: usize = 100_000;
/// Objects that one transaction reads or marks as used.
pub const AT_ONCE: usize = 500;
/// Refs of an org that a log names beside its commits.
const MAX_REFS: i64 = 10_000;

/// What a text of a person names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Named {
    Ref(RefName, CommitId),
    Object(Reference),
}

impl Named {
    fn reference(&self) -> Reference {
        match self {
            Named::Ref(_, commit) => (*commit).into(),
            Named::Object(reference) => *reference,
        }
    }
    fn commit(&self, field: &'static str) -> Result<CommitId, Refused> {
        match self.reference() {
            Reference { kind: Kind::Commit, id } => Ok(CommitId(id)),
            Reference { kind, id } => Err(Refused::invalid(field, format!("{id} is a {kind}: name a commit or a ref"))),
        }
    }
}

/// One object for people.
#[derive(Debug, Clone)]
pub struct Shown {
    pub of: Reference,
    pub bytes: i64,
    pub object: serde_json::Value,
}

/// One commit of a log, with the refs that are there.
#[derive(Debug, Clone)]
pub struct Logged {
    /// Its place in the log, from 1.
    pub number: i64,
    pub id: CommitId,
    pub commit: Commit,
    pub refs: Vec<RefName>,
}

/// An index of the org.
#[derive(Debug, Clone)]
pub struct IndexRow {
    pub project: String,
    pub name: RefName,
    pub commit: Option<CommitId>,
    pub pins: i64,
    /// New results are pinned here.
    pub current: bool,
}

/// What a ref must be before it is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Anything,
    Absent,
    At(CommitId),
}

impl Expect {
    /// As a request says it: a commit, `none`, or nothing.
    pub fn read(text: Option<&str>) -> Result<Expect, Refused> {
        match text {
            None => Ok(Expect::Anything),
            Some("none") => Ok(Expect::Absent),
            Some(commit) => commit_of("expect", commit).map(Expect::At),
        }
    }

    fn allows(self, current: Option<CommitId>) -> bool {
        match self {
            Expect::Anything => true,
            Expect::Absent => current.is_none(),
            Expect::At(commit) => current == Some(commit),
        }
    }
}

/// A change of a head, or of what a remote's head was.
#[derive(Debug, Clone)]
pub struct SetRef {
    pub name: RefName,
    /// A ref, a head's name, `index`, or the first digits of a commit.
    pub from: String,
    pub expect: Expect,
    /// Also where commits are lost by it.
    pub force: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefMoved {
    pub name: RefName,
    pub previous: Option<CommitId>,
    pub commit: CommitId,
}

impl Engine {
    /// Refs whose names begin so, behind a name, in order.
    pub async fn refs(
        &self,
        org: OrgId,
        prefix: &'static str,
        after: String,
        limit: i64,
    ) -> Result<Vec<(RefName, CommitId)>, Failure> {
        self.store.read("dag.refs", move |tx| store::refs::after(tx, org, prefix, &after, limit)).await
    }

    pub async fn indexes(&self, org: OrgId) -> Result<Vec<IndexRow>, Failure> {
        let ours = cached_run::project(&self.context);
        self.store
            .read("dag.indexes", move |tx| {
                let mut pins: BTreeMap<String, i64> = store::pin::projects(tx, org, MAX_REFS)?.into_iter().collect();
                pins.entry(ours.clone()).or_default();
                let commits: BTreeMap<RefName, CommitId> =
                    store::refs::page(tx, org, "refs/index/", MAX_REFS)?.into_iter().collect();
                let row = |(project, pins): (String, i64)| {
                    let name = index_of(org, &project);
                    let (commit, current) = (commits.get(&name).copied(), project == ours);
                    IndexRow { project, name, commit, pins, current }
                };
                Ok(pins.into_iter().map(row).collect())
            })
            .await
    }

    pub async fn shown(&self, org: OrgId, of: String) -> Result<Shown, Failure> {
        let project = cached_run::project(&self.context);
        self.store
            .read("dag.show", move |tx| {
                let of = named(tx, org, &project, &of)?.reference();
                shown::shown(tx, org, of)
            })
            .await
    }

    /// Commits from one on, children before parents, those after `skipped`.
    pub async fn log(&self, org: OrgId, of: String, skipped: i64, limit: i64) -> Result<Vec<Logged>, Failure> {
        let project = cached_run::project(&self.context);
        self.store
            .read("dag.log", move |tx| {
                let start = named(tx, org, &project, &of)?.commit("of")?;
                let mut refs: BTreeMap<CommitId, Vec<RefName>> = BTreeMap::new();
                for (name, commit) in store::refs::page(tx, org, "refs/", MAX_REFS)? {
                    refs.entry(commit).or_default().push(name);
                }
                let mut objects = Objects { tx, org };
                let (mut seen, mut next) = (BTreeSet::from([start]), VecDeque::from([start]));
                let (mut number, mut found) = (0, Vec::new());
                while let Some(id) = next.pop_front()
                    && (found.len() as i64) < limit
                {
                    let commit = read::commit(&mut objects, id).map_err(unreadable)?;
                    next.extend(commit.parents.iter().copied().filter(|parent| seen.insert(*parent)));
                    number += 1;
                    if seen.len() > MAX_LOG {
                        return Err(Refused::TooLarge { what: "the log", limit: format!("{MAX_LOG} commits") }.into());
                    }
                    if number > skipped {
                        found.push(Logged { number, id, commit, refs: refs.remove(&id).unwrap_or_default() });
                    }
                }
                Ok(found)
            })
            .await
    }

    /// Moves a head, or what a remote's head was, by compare-and-swap. A head that exists and is moved to the index gets a commit on
    /// top of what it was; anything else must be a fast-forward, unless it is forced.
    pub async fn set_ref(&self, org: OrgId, asked: SetRef) -> Result<RefMoved, Failure> {
        writable(&asked.name)?;
        let project = cached_run::project(&self.context);
        let held = self.hold_objects(org, &asked.from).await?;
        self.store
            .write(Lane::Normal, "dag.ref", move |tx| {
                // The ref that it is made from must not move before this one is written: a collection that begins meanwhile sees one of both.
                let source = named(tx, org, &project, &asked.from)?;
                let mut locks = BTreeSet::from([asked.name.clone()]);
                if let Named::Ref(name, _) = &source {
                    locks.insert(name.clone());
                }
                for name in &locks {
                    store::refs::lock(tx, org, name)?;
                }
                let source = named(tx, org, &project, &asked.from)?;
                if matches!(source, Named::Object(_)) && !held {
                    return Err(Refused::Stale { what: "the ref that it is made from" }.into());
                }
                let target = source.commit("from")?;
                let previous = store::refs::find(tx, org, &asked.name)?;
                let moved = |commit| RefMoved { name: asked.name.clone(), previous, commit };
                if !asked.expect.allows(previous) {
                    // The answer to an earlier, equal request may have been lost.
                    if previous == Some(target) {
                        return Ok(moved(target));
                    }
                    let is = previous.map_or("does not exist".to_owned(), |commit| format!("is at {commit}"));
                    return Err(Refused::Conflict { why: format!("{} {is}: look at it, then decide again", asked.name) }.into());
                }
                let is_index = matches!(&source, Named::Ref(RefName::Index(_), _));
                let to = match previous {
                    Some(head) if is_index && !asked.force => on_top(tx, org, head, target)?,
                    Some(head) if !asked.force => {
                        let forward = is_fast_forward(&mut Objects { tx, org }, head, target).map_err(unreadable)?;
                        if !forward {
                            let why = format!(
                                "{} is at {head}, which is not an ancestor of {target}: --force moves it, and what only it leads to is lost",
                                asked.name
                            );
                            return Err(Refused::Conflict { why }.into());
                        }
                        target
                    }
                    _ => target,
                };
                if previous != Some(to) {
                    let swapped = store::refs::swap(tx, org, &asked.name, Swap { expect: previous, to: Some(to) })?;
                    swapped.map_err(|_| Refused::Stale { what: "the ref" })?;
                }
                Ok(moved(to))
            })
            .await
    }

    /// Deletes a head, or what a remote's head was; false if there is none. Its objects stay until a collection.
    pub async fn delete_ref(&self, org: OrgId, name: RefName, expect: Expect) -> Result<bool, Failure> {
        writable(&name)?;
        self.store
            .write(Lane::Normal, "dag.unref", move |tx| {
                let Some(current) = store::refs::lock(tx, org, &name)? else { return Ok(false) };
                if !expect.allows(Some(current)) {
                    return Err(Refused::Conflict { why: format!("{name} is at {current}: it was not deleted") }.into());
                }
                let swapped = store::refs::swap(tx, org, &name, Swap { expect: Some(current), to: None })?;
                swapped.map_err(|_| Refused::Stale { what: "the ref" })?;
                Ok(true)
            })
            .await
    }

    /// A commit that no ref names may be swept at any time. Everything below it is looked for and counts as used now, so that a
    /// collection leaves it until the ref is written. False if a ref names it: then its objects are kept anyway.
    async fn hold_objects(&self, org: OrgId, from: &str) -> Result<bool, Failure> {
        let (project, from) = (cached_run::project(&self.context), from.to_owned());
        let below = self
            .store
            .read("dag.below", move |tx| {
                let commit = match named(tx, org, &project, &from)? {
                    Named::Ref(..) => return Ok(None),
                    found @ Named::Object(_) => found.commit("from")?,
                };
                let mut objects = Objects { tx, org };
                let below = closure(&mut objects, [commit.into()], &|_| false, MAX_OBJECTS).map_err(unreadable)?;
                for blob in &below.blobs {
                    if !objects.has_blob(*blob)? {
                        return Err(unreadable(Fault::MissingBlob(*blob)));
                    }
                }
                Ok(Some(below))
            })
            .await?;
        let Some(Closure { objects, blobs }) = below else { return Ok(false) };
        let gone =
            || Refused::Gone { what: "a part of the commit", why: "it was collected meanwhile: send it again".into() };
        for some in objects.chunks(AT_ONCE) {
            let ids: Vec<Id> = some.iter().map(|object| object.id).collect();
            let here = self.store.write(Lane::Low, "dag.touch", move |tx| store::object::touch(tx, org, &ids)).await?;
            if !here {
                return Err(gone().into());
            }
        }
        let blobs: Vec<_> = blobs.into_iter().collect();
        for some in blobs.chunks(AT_ONCE) {
            let hashes: Vec<String> = some.iter().map(|blob| blob.hash.to_string()).collect();
            let here = move |tx: &mut Tx| {
                hashes.iter().try_fold(true, |all, hash| Ok(store::content::touch(tx, org, hash)? && all))
            };
            if !self.store.write(Lane::Low, "dag.touch_blobs", here).await? {
                return Err(gone().into());
            }
        }
        Ok(true)
    }

    /// Everything below a commit, children before parents, without what is below `have`, if that is one of its ancestors.
    pub async fn below(&self, org: OrgId, of: String, have: Option<CommitId>) -> Result<Vec<Id>, Failure> {
        let project = cached_run::project(&self.context);
        self.store
            .read("dag.below", move |tx| {
                let commit = named(tx, org, &project, &of)?.commit("of")?;
                let mut objects = Objects { tx, org };
                let mut known = BTreeSet::new();
                if let Some(have) = have
                    && objects.record(have.into())?.is_some()
                    && is_fast_forward(&mut objects, have, commit).map_err(unreadable)?
                {
                    let had = closure(&mut objects, [have.into()], &|_| false, MAX_OBJECTS).map_err(unreadable)?;
                    known.extend(had.objects);
                }
                let new = closure(&mut objects, [commit.into()], &|object| known.contains(&object), MAX_OBJECTS);
                Ok(new.map_err(unreadable)?.objects.into_iter().map(|object| object.id).collect())
            })
            .await
    }

    /// The records of some objects; those that were collected meanwhile are left out.
    pub async fn records(&self, org: OrgId, ids: Vec<Id>) -> Result<Vec<Vec<u8>>, Failure> {
        self.store.read("dag.records", move |tx| store::object::many(tx, org, &ids)).await
    }

    /// Stores records that came from elsewhere. Nothing leads to them before a ref is set.
    pub async fn put_records(&self, org: OrgId, records: Vec<Vec<u8>>) -> Result<(), Failure> {
        let mut checked = Vec::with_capacity(records.len());
        for (at, bytes) in records.into_iter().enumerate() {
            let object = Object::decode(&bytes)
                .map_err(|why| Refused::invalid("records", format!("record {} is not an object: {why}", at + 1)))?;
            checked.push((Reference { kind: object.kind(), id: Id::of(&bytes) }, bytes));
        }
        self.store.write(Lane::Normal, "dag.put", move |tx| store::object::put(tx, org, &checked)).await
    }
}

/// A commit with what the index has, on top of a head; the head itself if it has the same.
fn on_top(tx: &mut Tx, org: OrgId, head: CommitId, index: CommitId) -> Result<CommitId, Failure> {
    let mut objects = Objects { tx, org };
    let (old, new) = (read::commit(&mut objects, head), read::commit(&mut objects, index));
    let (old, new) = (old.map_err(unreadable)?, new.map_err(unreadable)?);
    if (old.tree, old.execs) == (new.tree, new.execs) {
        return Ok(head);
    }
    let commit = Commit { parents: vec![head], ..new };
    let id = commit.id();
    store::object::put(tx, org, &[(id.into(), commit.record())])?;
    Ok(id)
}

/// A commit by all of its digits.
pub fn commit_of(field: &'static str, text: &str) -> Result<CommitId, Refused> {
    text.parse().map_err(|bad: calls::id::BadId| Refused::invalid(field, bad.to_string()))
}

/// A ref as a person writes it: its whole name, or that of a head.
pub fn ref_of(text: &str) -> Result<RefName, Refused> {
    if text.starts_with("refs/") {
        return text.parse().map_err(|bad: calls::refs::BadRef| Refused::invalid("name", bad.to_string()));
    }
    Name::new(text).map(RefName::Head).map_err(|bad| Refused::invalid("name", bad.to_string()))
}

/// What a person writes for it.
pub fn short(name: &RefName) -> String {
    match name {
        RefName::Head(head) => head.to_string(),
        RefName::Remote { remote, head } => format!("{remote}/{head}"),
        other => other.to_string(),
    }
}

/// Executions alone write the index and their own refs.
fn writable(name: &RefName) -> Result<(), Refused> {
    match name {
        RefName::Head(head) => {
            let text = head.as_str();
            if text == INDEX || text.starts_with("refs/") || text.parse::<Prefix>().is_ok() {
                let why = format!("`{text}` would be taken for the index, a ref or an object: choose another name");
                return Err(Refused::invalid("name", why));
            }
            Ok(())
        }
        RefName::Remote { .. } => Ok(()),
        RefName::Index(_) | RefName::Exec(_) | RefName::Claim(_) => {
            let why = format!("{name} is written by executions alone: heads are refs/heads/…");
            Err(Refused::invalid("name", why))
        }
    }
}

/// Reads what a person names: a ref, `index`, a head, REMOTE/HEAD, or the first digits of an object.
fn named(tx: &mut Tx, org: OrgId, project: &str, text: &str) -> Result<Named, Failure> {
    let found = |tx: &mut Tx, name: RefName| {
        let commit = store::refs::find(tx, org, &name)?;
        Ok::<_, Failure>(commit.map(|commit| Named::Ref(name, commit)))
    };
    if text == INDEX {
        let nothing = || Refused::not_found("index", "nothing is pinned yet; `repl run --cache` pins its result");
        return Ok(found(tx, index_of(org, project))?.ok_or_else(nothing)?);
    }
    if text.starts_with("refs/") {
        let name: RefName =
            text.parse().map_err(|bad: calls::refs::BadRef| Refused::invalid("ref", bad.to_string()))?;
        return Ok(found(tx, name)?.ok_or_else(|| Refused::not_found("ref", text))?);
    }
    let head = Name::new(text).map_err(|bad| Refused::invalid("of", bad.to_string()))?;
    if let Some(head) = found(tx, RefName::Head(head))? {
        return Ok(head);
    }
    if let Some((remote, head)) = text.split_once('/')
        && let (Ok(remote), Ok(head)) = (Name::new(remote), Name::new(head))
        && let Some(seen) = found(tx, RefName::Remote { remote, head })?
    {
        return Ok(seen);
    }
    let Ok(prefix) = text.parse::<Prefix>() else {
        return Err(Refused::not_found("head or object", text).into());
    };
    match store::object::of_prefix(tx, org, prefix, 2)?.as_slice() {
        [] => Err(Refused::not_found("head or object", text).into()),
        [one] if one.kind == Kind::Commit => Ok(head_at(tx, org, CommitId(one.id))?.unwrap_or(Named::Object(*one))),
        [one] => Ok(Named::Object(*one)),
        [one, other, ..] => {
            let why = format!("`{text}` may be {one} or {other}: write more digits");
            Err(Refused::invalid("of", why).into())
        }
    }
}

/// A head, or what one of a remote was, that points to this commit: its objects are kept.
fn head_at(tx: &mut Tx, org: OrgId, commit: CommitId) -> Result<Option<Named>, Failure> {
    for prefix in ["refs/heads/", "refs/remotes/"] {
        let all = store::refs::page(tx, org, prefix, MAX_REFS)?;
        if let Some((name, _)) = all.into_iter().find(|(_, at)| *at == commit) {
            return Ok(Some(Named::Ref(name, commit)));
        }
    }
    Ok(None)
}

fn unreadable(fault: Fault<Failure>) -> Failure {
    match fault {
        Fault::Source(failure) => failure,
        Fault::TooLarge { what, limit } => Refused::TooLarge { what, limit: limit.to_string() }.into(),
        fault => Refused::Gone { what: "a part of it", why: fault.to_string() }.into(),
    }
}
