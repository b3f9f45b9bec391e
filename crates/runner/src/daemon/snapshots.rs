//! Sends folders that the desired document asks for, as they are now: one task each, which tells the control plane what came of it. A
//! runner that dies sends them again; what the control plane has already changes nothing.

use super::Daemon;
use crate::clock::Backoff;
use crate::kept;
use crate::link::Line;
use crate::sync;
use std::path::PathBuf;
use wire::client::ClientError;
use wire::model::crash_point;
use wire::runner::{DesiredSnapshot, SnapshotTaken};

/// All that is in the folder.
const EVERYTHING: &str = "**";

impl Daemon {
    /// Begins those that are new and ends those that the desired document does not list any more.
    pub(super) fn send_snapshots(&mut self, wanted: Vec<DesiredSnapshot>) {
        self.snapshots.retain(|id, task| {
            let stays = wanted.iter().any(|snapshot| snapshot.snapshot == *id);
            if !stays {
                task.abort();
            }
            stays
        });
        for DesiredSnapshot { snapshot, workdir } in wanted {
            if self.snapshots.contains_key(&snapshot) {
                continue;
            }
            let (folder, line) = (sync::workdir(&self.instance.dir, &workdir, None), self.line.clone());
            let task = tokio::spawn(async move {
                let (tree, error) = match folder {
                    Ok((folder, _)) => taken(folder, &line).await,
                    Err(not_placed) => (None, Some(not_placed.why)),
                };
                tell(line, SnapshotTaken { snapshot, tree, error }).await;
            });
            self.snapshots.insert(snapshot, task.abort_handle());
        }
    }
}

async fn taken(folder: PathBuf, line: &Line) -> (Option<wire::model::tree::TreeRef>, Option<String>) {
    if !folder.is_dir() {
        return (None, Some("its folder is not there any more".to_owned()));
    }
    match kept::keep(&folder, vec![EVERYTHING.to_owned()], line).await {
        Ok(tree) => (Some(tree), None),
        Err(why) => (None, Some(why)),
    }
}

/// Until the control plane has it, or does not want it.
async fn tell(mut line: Line, said: SnapshotTaken) {
    let mut backoff = Backoff::default();
    loop {
        let told: Result<serde_json::Value, ClientError> =
            crash_point!("snapshot.put", line.client.post("/runner/v1/snapshots", &said).await);
        match told {
            Ok(_) => return,
            Err(error) if error.problem().is_some_and(|problem| problem.status < 500 && problem.status != 429) => {
                return tracing::warn!(%error, "the control plane does not take a snapshot");
            }
            Err(error) => {
                tracing::debug!(%error, "a snapshot was not acknowledged");
                line.try_again_after(backoff.next()).await;
            }
        }
    }
}
