//! The desired document of an instance: all that its runner should be doing, computed from rows whenever it is asked for.

use crate::Engine;
use model::allocation::Allocation;
use model::instance::{Instance, InstanceStatus};
use model::job::{Job, JobStatus};
use model::run::Run;
use model::{AllocationId, Failure, InstanceId, Refused};
use std::collections::BTreeMap;
use std::sync::Mutex;
use store::Tx;
use store::blob::{BlobHash, BlobName};

/// Files up to this size travel inside the document.
const INLINE_BYTES: i64 = 64 * 1024;
/// Inline bytes of one document in sum.
const INLINE_SUM: i64 = 256 * 1024;
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
    /// Bytes of small files and of a small standard input, by hash.
    pub inline: BTreeMap<String, Vec<u8>>,
    pub log_offset: i64,
}

impl Engine {
    pub async fn desired(&self, id: InstanceId) -> Result<Desired, Failure> {
        let (house, workdirs) = (self.house.clone(), self.workdirs.clone());
        let (instance, job, kept) = self
            .store
            .glance("instance.desired", move |tx| {
                let instance = store::instance::find(tx, id)?.ok_or_else(|| Refused::not_found("instance", id))?;
                let kept = workdirs.kept_on(tx, id)?;
                let Some(job) = store::job::on_instance(tx, id)?.filter(wanted) else {
                    return Ok((instance, None, kept));
                };
                let run = store::run::find(tx, job.run)?.ok_or_else(|| Refused::not_found("run", job.run))?;
                let mut secrets = BTreeMap::new();
                for name in &run.spec.secrets {
                    // A secret that was deleted meanwhile is missing there, as it is here.
                    if let Ok(value) = store::secret::open(tx, &house.installation, run.org, name) {
                        secrets.insert(name.clone(), value);
                    }
                }
                Ok((instance, Some((job, run, secrets)), kept))
            })
            .await?;
        let workdir_of = |job: &Job| job.allocation.and_then(|slot| kept.get(&slot).cloned());
        let job = match job {
            Some((job, run, secrets)) => {
                self.house.presence.deliver(job.id);
                let workdir = workdir_of(&job).unwrap_or_else(|| "work_1".into());
                let inline = self.inline_files(&run).await?;
                let log_offset = self.logs.reached(job.id, job.epoch).await?.next_offset;
                Some(DesiredJob { job, run, workdir, secrets, inline, log_offset })
            }
            None => None,
        };
        let shutdown =
            matches!(instance.status, InstanceStatus::Terminating | InstanceStatus::Terminated) && job.is_none();
        Ok(Desired { instance, job, kept_workdirs: kept.into_values().collect(), shutdown })
    }

    async fn inline_files(&self, run: &Run) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
        let (mut inline, mut sum) = (BTreeMap::new(), 0);
        let stdin = run.spec.stdin.iter().map(|stdin| (&stdin.hash, stdin.size));
        let contents = stdin.chain(run.spec.files.iter().map(|file| (&file.hash, file.size)));
        for (text, size) in contents.filter(|(_, size)| *size <= INLINE_BYTES) {
            if sum + size > INLINE_SUM || inline.contains_key(text) {
                continue;
            }
            let Ok(hash) = text.parse::<BlobHash>() else { continue };
            if let Ok(bytes) =
                self.blobs.open(&BlobName::Content { org: run.org, hash }).and_then(|blob| blob.read_all())
            {
                sum += size;
                inline.insert(text.clone(), bytes);
            }
        }
        Ok(inline)
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
