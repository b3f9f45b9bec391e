//! Features of machines: which scripts of the settings a run's names mean, and what a runner says that it did with them. The states are
//! `model::feature`'s; who waits for them are nodes of launch-run and terminate-instance.

use crate::{Engine, EngineContext};
use model::feature::{Feature, FeatureEvent, FeatureSettings, FeatureState, Wanted};
use model::instance::Instance;
use model::{Failure, InstanceId, Refused};
use store::blob::BlobHash;
use store::{Hint, Lane, Tx, WorkKind};

/// What a runner says about a feature that it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureSaid {
    pub name: String,
    /// The request that it answers.
    pub request: i64,
    pub done: Result<(), String>,
}

/// Names what a machine has: other scripts or variables are another feature.
pub fn checksum(settings: &FeatureSettings) -> String {
    let FeatureSettings { install, remove, env, .. } = settings;
    let text = serde_json::to_vec(&(install, remove, env)).expect("texts become JSON");
    BlobHash::of(&text).to_string()
}

impl EngineContext {
    /// Refuses a name that the settings do not have.
    pub(crate) fn check_features(&self, names: &[String]) -> Result<(), Refused> {
        let all = &self.config.features;
        let Some(name) = names.iter().find(|name| !all.contains_key(*name)) else { return Ok(()) };
        let known: Vec<&str> = all.keys().map(String::as_str).collect();
        let fix = match known.is_empty() {
            true => "the settings have no [features]".to_owned(),
            false => plan::nearest::suggestion(name, &known),
        };
        Err(Refused::invalid("features", format!("unknown feature `{name}`: {fix}")))
    }

    /// What a machine must have for a run, as placement compares it. One that the settings lost fits nowhere.
    pub(crate) fn wanted_features(&self, names: &[String]) -> Vec<Wanted> {
        let wanted = |name: &String| (name.clone(), self.config.features.get(name).map_or_else(String::new, checksum));
        names.iter().map(wanted).collect()
    }

    /// What a machine that gets the run's job is to be prepared with, and how long each may take.
    pub(crate) fn features_to_install(&self, names: &[String]) -> Vec<(Feature, i64)> {
        let known = names.iter().filter_map(|name| Some((name, self.config.features.get(name)?)));
        let feature = |(name, settings): (&String, &FeatureSettings)| {
            let feature = Feature {
                name: name.clone(),
                checksum: checksum(settings),
                state: FeatureState::Installing,
                request: 1,
                remove: settings.remove.clone(),
                remove_ms: settings.remove_ms,
                error: None,
            };
            (feature, settings.install_ms)
        };
        known.map(feature).collect()
    }
}

impl Engine {
    /// A runner has done what it was asked for, or could not. Said twice it changes nothing.
    pub async fn feature_said(&self, id: InstanceId, said: FeatureSaid) -> Result<(), Failure> {
        self.store
            .write(Lane::Normal, "feature.said", move |tx| {
                let mut instance = store::instance::lock(tx, id)?;
                let answers = |it: &Feature| it.name == said.name && it.request == said.request;
                if !instance.features.iter().any(answers) {
                    return Ok(()); // no node waits for it any more
                }
                let event = match said.done.clone() {
                    Ok(()) => FeatureEvent::Done,
                    Err(why) => FeatureEvent::Failed { why },
                };
                if instance.feature_event(&said.name, &event) {
                    tell(tx, &instance)?;
                    wake_waiting(tx, &instance)?;
                }
                Ok(())
            })
            .await
    }
}

/// Writes a machine whose features have changed, and tells its runner.
pub(crate) fn tell(tx: &mut Tx, instance: &Instance) -> Result<(), Failure> {
    store::instance::save(tx, instance)?;
    tx.hint(Hint::Instance(instance.id));
    Ok(())
}

/// The workflows that may wait for a machine's features look again: of the job on it, and of its end.
pub(crate) fn wake_waiting(tx: &mut Tx, instance: &Instance) -> Result<(), Failure> {
    let at = tx.at();
    let of_job = store::job::on_instance(tx, instance.id)?.map(|job| job.workflow);
    for workflow in of_job.into_iter().chain(instance.workflow) {
        tx.wake(WorkKind::Workflow, workflow.0, at);
    }
    Ok(())
}
