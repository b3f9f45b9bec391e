//! Installs and removes the features that the desired document names: one task each, which tells the control plane what came of it. A
//! runner that dies begins again where its marks say.

use super::Daemon;
use crate::clock::Backoff;
use crate::feature::Here;
use crate::link::Line;
use wire::client::ClientError;
use wire::model::names;
use wire::runner::{DesiredFeature, FeatureDone};

impl Daemon {
    /// Begins what is new, and ends what is not asked for any more: a script goes with its task.
    pub(super) fn change_features(&mut self, wanted: Vec<DesiredFeature>) {
        let asked = |name: &str, request: i64| wanted.iter().any(|it| it.name == name && it.request == request);
        self.features.retain(|(name, request), task| {
            let stays = asked(name, *request);
            if !stays {
                task.abort();
            }
            stays
        });
        for feature in wanted {
            let key = (feature.name.clone(), feature.request);
            if self.features.contains_key(&key) {
                continue;
            }
            let boot = &self.instance.boot;
            let public_name = names::tailscale_name(&boot.control_id, boot.instance.0);
            let here = Here { dir: self.instance.dir.clone(), name: boot.name.clone(), public_name };
            let line = self.line.clone();
            let task = tokio::spawn(async move {
                let done = here.change(&feature).await;
                if let Err(why) = &done {
                    tracing::warn!(feature = feature.name, why, "a feature could not be changed");
                }
                tell(line, FeatureDone { name: feature.name, request: feature.request, error: done.err() }).await;
            });
            self.features.insert(key, task.abort_handle());
        }
    }
}

/// Until the control plane has it, or does not want it.
async fn tell(mut line: Line, said: FeatureDone) {
    let mut backoff = Backoff::default();
    loop {
        let told: Result<serde_json::Value, ClientError> = line.client.post("/runner/v1/features", &said).await;
        match told {
            Ok(_) => return,
            Err(error) if error.problem().is_some_and(|problem| problem.status < 500 && problem.status != 429) => {
                return tracing::warn!(%error, "the control plane does not take what became of a feature");
            }
            Err(error) => {
                tracing::debug!(%error, "what became of a feature was not acknowledged");
                line.try_again_after(backoff.next()).await;
            }
        }
    }
}
