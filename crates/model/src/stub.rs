//! A stub: what a runner keeps of a job, sealed by the control plane that sent the job, so that the job can be tracked again after the loss
//! of the database. It holds no secret and no environment, and is not enough to run the command once more.

use crate::feature::Feature;
use crate::instance::Instance;
use crate::job::Job;
use crate::run::Run;
use crate::spec::{Command, OnLostControl, Resources, RunContent, RunKind};
use crate::step::StepTry;
use crate::{JobId, OrgId, RunId, Timestamp};
use serde::{Deserialize, Serialize};

/// For people and for results; nothing is started from it.
pub const COMMAND_BYTES: usize = 4 << 10;
/// Globs of artifacts, in sum. More are left out, all of them.
pub const ARTIFACT_BYTES: usize = 4 << 10;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stub {
    pub org: OrgId,
    pub org_name: String,
    pub run: RunId,
    pub run_name: String,
    pub kind: RunKind,
    pub job: JobId,
    pub epoch: i64,
    /// The one step of a plain task. The steps of a plan are lost with the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepTry>,
    pub nodes: i64,
    pub command: Command,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub merge: bool,
    pub workdir: String,
    /// The name of the machine that it was sent to, and where that is.
    pub instance: String,
    pub provider: String,
    pub region: String,
    #[serde(default)]
    pub resources: Resources,
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_duration_ms: Option<i64>,
    pub stop_duration_ms: i64,
    pub on_lost_control: OnLostControl,
    pub price_micro: i64,
    /// Of the machine: the numbers of its GPUs on its host, the init that it has or that the job brings, and its features. Their removal
    /// scripts are left out: the settings have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Vec<i64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_checksum: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<Feature>,
}

/// A stub as a runner keeps it: the very text that was sealed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SealedStub {
    pub text: String,
    /// HMAC(installation key, text), in hex.
    pub seal: String,
}

impl Stub {
    pub fn of(
        (job, run, content): (&Job, &Run, &RunContent),
        instance: &Instance,
        org_name: String,
        workdir: String,
    ) -> Stub {
        let globs: usize = content.artifacts.iter().map(String::len).sum();
        Stub {
            org: run.org,
            org_name,
            run: run.id,
            run_name: run.name.clone(),
            kind: run.spec.kind,
            job: job.id,
            epoch: job.epoch,
            step: job.step,
            nodes: run.spec.nodes,
            command: shortened(&content.command),
            working_dir: content.working_dir.clone(),
            artifacts: if globs <= ARTIFACT_BYTES { content.artifacts.clone() } else { Vec::new() },
            merge: content.merge,
            workdir,
            instance: instance.name.clone(),
            provider: instance.provider.clone(),
            region: instance.region.clone(),
            resources: job.resources.clone().unwrap_or_else(|| run.spec.resources.clone()),
            started_at: job.running_at.or(job.placed_at).unwrap_or(job.submitted_at),
            max_duration_ms: run.spec.max_duration_ms,
            stop_duration_ms: run.spec.stop_duration_ms,
            on_lost_control: run.spec.on_lost_control,
            price_micro: job.price_micro,
            gpus: instance.gpus.clone(),
            init_checksum: instance.init_checksum.clone(),
            features: instance.features.iter().map(without_script).collect(),
        }
    }

    /// What keeps it from being tracked again, for every caller.
    pub fn lacks(&self) -> Option<&'static str> {
        match () {
            () if self.step.is_none() => Some("it is of a plan, which is lost with the database"),
            () if self.nodes != 1 => Some("its run has several machines"),
            () => None,
        }
    }
}

fn without_script(feature: &Feature) -> Feature {
    Feature { remove: String::new(), ..feature.clone() }
}

/// As it was if it is short, else its beginning.
fn shortened(command: &Command) -> Command {
    let shown = command.shown();
    if shown.len() <= COMMAND_BYTES {
        return command.clone();
    }
    let mut end = COMMAND_BYTES;
    while !shown.is_char_boundary(end) {
        end -= 1;
    }
    Command::Shell(format!("{}…", &shown[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_is_cut_between_characters() {
        let long = Command::Shell("ä".repeat(COMMAND_BYTES));
        let Command::Shell(cut) = shortened(&long) else { panic!("it is shown as a text") };
        assert!(cut.len() <= COMMAND_BYTES + '…'.len_utf8() && cut.ends_with("ä…"), "{} bytes", cut.len());
        let short = Command::Argv(vec!["echo".into(), "x".into()]);
        assert_eq!(shortened(&short), short);
    }
}
