//! The desired document of an instance: all that its runner should be doing, computed from rows whenever it is asked for.

use crate::Engine;
use model::allocation::Allocation;
use model::instance::{Instance, InstanceStatus};
use model::job::{Job, JobStatus};
use model::run::Run;
use model::tree::Tree;
use model::{AllocationId, Failure, InstanceId, Refused};
use std::collections::BTreeMap;
use std::sync::Mutex;
use store::Tx;

/// Small trees travel inside the document, folders and files: up to so many, and so many bytes in sum.
const INLINE_BLOBS: usize = 64;
const INLINE_BYTES: i64 = 64 * 1024;
/// Names of workdirs that are remembered, of all machines together: 2 MB.
const REMEMBERED: usize = 20_000;
/// Slots that are read one by one rather than all of a machine's.
const FEW: usize = 4;

#[derive(Debug, Clone)]
pub struct Desired {
    pub instance: Instance,
    pub job: Option<DesiredJob>,
    pub kept_workdirs: Vec<String>,
    pub shutdown: bool,
}

#[derive(Debug, Clone)]
pub struct DesiredJob {
    pub job: Job,
    pub run: Run,
    pub workdir: String,
    pub secrets: BTreeMap<String, String>,
    /// The whole tree of its files, folders' documents included, if it is small, and a small standard input, by hash.
    pub inline: BTreeMap<String, Vec<u8>>,
    pub log_offset: i64,
}

impl Engine {
    pub async fn desired(&self, id: InstanceId) -> Result<Desired, Failure> {
        let (context, workdirs) = (self.context.clone(), self.workdirs.clone());
        let (instance, job, kept) = self
            .store
            .read("instance.desired", move |tx| {
                let instance = store::instance::find(tx, id)?.ok_or_else(|| Refused::not_found("instance", id))?;
                let kept = workdirs.kept_on(tx, id)?;
                let Some(job) = store::job::on_instance(tx, id)?.filter(wanted) else {
                    return Ok((instance, None, kept));
                };
                let run = store::run::find(tx, job.run)?.ok_or_else(|| Refused::not_found("run", job.run))?;
                let mut secrets = BTreeMap::new();
                for name in &run.spec.secrets {
                    // A secret that was deleted meanwhile is missing there, as it is here.
                    if let Ok(value) = store::secret::open(tx, &context.installation, run.org, name) {
                        secrets.insert(name.clone(), value);
                    }
                }
                Ok((instance, Some((job, run, secrets)), kept))
            })
            .await?;
        let workdir_of = |job: &Job| job.allocation.and_then(|slot| kept.get(&slot).cloned());
        let job = match job {
            Some((job, run, secrets)) => {
                self.context.presence.deliver(job.id);
                let workdir = workdir_of(&job).unwrap_or_else(|| "work_1".into());
                let inline = self.inline(&run);
                let log_offset = self.logs.reached(job.id, job.epoch).await?.next_offset;
                Some(DesiredJob { job, run, workdir, secrets, inline, log_offset })
            }
            None => None,
        };
        let shutdown =
            matches!(instance.status, InstanceStatus::Terminating | InstanceStatus::Terminated) && job.is_none();
        Ok(Desired { instance, job, kept_workdirs: kept.into_values().collect(), shutdown })
    }

    fn inline(&self, run: &Run) -> BTreeMap<String, Vec<u8>> {
        let mut inline = self.inline_tree(run).unwrap_or_default();
        if let Some(stdin) = run.spec.stdin.as_ref().filter(|stdin| stdin.size <= INLINE_BYTES)
            && let Ok(bytes) = self.open_blob(run.org, &stdin.hash).and_then(|blob| blob.read_all())
        {
            inline.insert(stdin.hash.clone(), bytes);
        }
        inline
    }

    /// None when the tree is too large, or not to be read: then the runner fetches it.
    fn inline_tree(&self, run: &Run) -> Option<BTreeMap<String, Vec<u8>>> {
        let root = run.spec.files.as_ref().filter(|tree| tree.bytes <= INLINE_BYTES)?;
        let (mut inline, mut left) = (BTreeMap::new(), INLINE_BYTES);
        let mut open = vec![(root.hash.clone(), true)];
        while let Some((hash, is_tree)) = open.pop() {
            if inline.contains_key(&hash) {
                continue;
            }
            let blob = self.open_blob(run.org, &hash).ok()?;
            left -= blob.size;
            if left < 0 || inline.len() == INLINE_BLOBS {
                return None;
            }
            let bytes = blob.read_all().ok()?;
            if is_tree {
                let tree = Tree::parse(&bytes).ok()?;
                open.extend(tree.children().map(|child| (child.hash.to_owned(), child.is_tree)));
            }
            inline.insert(hash, bytes);
        }
        Some(inline)
    }
}

/// The names of workdirs by the slot they belong to, which never change: a machine keeps those of its last runs for a while, and is told
/// of all of them whenever anything about it changes.
#[derive(Default)]
pub(crate) struct Workdirs(Mutex<BTreeMap<AllocationId, String>>);

impl Workdirs {
    fn kept_on(&self, tx: &mut Tx, instance: InstanceId) -> Result<BTreeMap<AllocationId, String>, Failure> {
        let ids = store::allocation::kept_ids(tx, instance)?;
        let mut kept = self.known(&ids);
        let unknown: Vec<_> = ids.into_iter().filter(|id| !kept.contains_key(id)).collect();
        let slots = match unknown.len() {
            ..=FEW => unknown.into_iter().filter_map(|id| store::allocation::find(tx, id).transpose()).collect(),
            _ => store::allocation::kept_on(tx, instance),
        };
        let slots: Vec<Allocation> = slots?;
        let mut known = self.0.lock().expect("nothing panics while it is locked");
        for slot in slots {
            if known.len() >= REMEMBERED {
                known.pop_first(); // the oldest, which is the first to be no longer kept
            }
            known.insert(slot.id, slot.workdir.clone());
            kept.insert(slot.id, slot.workdir);
        }
        Ok(kept)
    }

    fn known(&self, ids: &[AllocationId]) -> BTreeMap<AllocationId, String> {
        let known = self.0.lock().expect("nothing panics while it is locked");
        ids.iter().filter_map(|id| known.get(id).map(|name| (*id, name.clone()))).collect()
    }
}

/// Jobs that a runner should know of: placed, and not known to be gone from there.
fn wanted(job: &Job) -> bool {
    job.status != JobStatus::Submitted && !job.status.is_end() && job.gone_at.is_none() && !job.fenced
}
