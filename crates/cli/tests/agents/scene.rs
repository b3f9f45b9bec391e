//! A home with a model and a recorder beside it, and plans that are submitted, followed and read there.

use crate::api::Api;
use crate::home::Home;
use crate::model::{ModelServer, Script};
use crate::process::{Ended, Running};
use crate::recorder::Recorder;
use serde_json::Value;
use std::collections::BTreeMap;

pub struct Scene {
    pub home: Home,
    pub model: ModelServer,
    pub recorder: Recorder,
}

/// Failures of steps are never so many that a person is asked.
const NO_TICKETS: &str = "[escalation]\nmax_errors = 1000\nmin_samples = 1000\n";

impl Scene {
    /// On an embedded control plane, with SQLite.
    pub fn new(script: Script, recorder: Recorder) -> Scene {
        Scene::with(script, recorder, "")
    }

    pub fn with(script: Script, recorder: Recorder, settings: &str) -> Scene {
        let model = ModelServer::start(script);
        let home = Home::with(&format!("{}{settings}", self::settings(&model)));
        Scene { home, model, recorder }
    }

    /// Two servers and two workers on a PostgreSQL of its own.
    pub fn of_many(script: Script, recorder: Recorder, settings: &str) -> Scene {
        let model = ModelServer::start(script);
        let home = Home::of_many(&format!("{}{settings}", self::settings(&model)));
        Scene { home, model, recorder }
    }

    /// Submits a plan; the id of its run.
    pub fn submit(&self, plan: &str) -> String {
        let file = self.file(plan);
        self.home.json(&["run", &file, "--detach"])["id"].as_str().unwrap().to_owned()
    }

    /// Runs a plan to its end.
    pub fn run(&self, plan: &str) -> (String, Ended) {
        let run = self.submit(plan);
        let ended = self.home.attach(&run);
        (run, ended)
    }

    /// The name of a file with this plan in it.
    pub fn file(&self, plan: &str) -> String {
        let plan = plan.replace("RECORDER", &self.recorder.url(""));
        let name = format!("plan-{:x}.repl.yml", fingerprint(&plan));
        self.home.write(&name, plan);
        name
    }

    /// What the run answers.
    pub fn output(&self, run: &str) -> Value {
        Api::of(&self.home).get(&format!("/runs/{run}"))["output"].take()
    }

    /// Every agent, task and step of the run, by its names.
    pub fn tree(&self, run: &str) -> BTreeMap<String, Value> {
        let mut found = BTreeMap::new();
        let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
        for agent in list(&self.home.json(&["status", run]), "agents") {
            let name = agent["name"].as_str().unwrap().to_owned();
            for task in list(&agent, "tasks") {
                let path = format!("{name}/{}", task["name"].as_str().unwrap());
                for step in list(&task, "steps") {
                    found.insert(format!("{path}/{}", step["name"].as_str().unwrap()), step);
                }
                found.insert(path, task);
            }
            found.insert(name, agent);
        }
        found
    }

    /// Follows the run's events until one has this name and this word in it.
    pub fn hears(&self, run: &str, name: &str, word: &str) -> Value {
        let mut events = Running::start(&mut self.home.repl(&["events", "-f", "--json", run]));
        loop {
            let line = events.line();
            assert!(!line.is_empty(), "{run} has ended, and no {name} with `{word}` was told");
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["kind"] == name && line.contains(word) {
                crate::process::kill(events.pid());
                events.end();
                return event;
            }
        }
    }
}

fn settings(model: &ModelServer) -> String {
    let models = "[llm.default.models.scripted]\ncontext = 16000\ninput_price = \"10\"\noutput_price = \"20\"\n";
    let llm = format!("[llm.default]\nbase_url = \"{}\"\n{models}", model.url());
    format!("[tools]\nallow = [\"127.0.0.1\"]\n{llm}{NO_TICKETS}")
}

fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
