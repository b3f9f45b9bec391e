//! A runner that says what the test wants, with the name and the token of a real one. Repeats itself until it is heard, as a
//! runner does; never starts anything.

use crate::world::World;
use std::cell::OnceCell;
use wire::Base64;
use wire::client::Client;
use wire::model::boot::{BOOT_FILE, Boot};
use wire::model::step::StepTry;
use wire::runner::{Fact, Frame, LogChunk, Register, Registered, ReportAnswer, ReportBatch, Stream, What};

pub struct Puppet<'w> {
    world: &'w World,
    runtime: tokio::runtime::Runtime,
    boot: Boot,
    /// The one job of its machine, as it was first told.
    job: OnceCell<(wire::model::JobId, i64, StepTry)>,
}

impl Puppet<'_> {
    /// Of the only machine.
    pub fn of(world: &World) -> Puppet<'_> {
        let machines = std::fs::read_dir(world.home.data().join("instances")).unwrap().flatten();
        let file = machines.map(|machine| machine.path().join(BOOT_FILE)).find(|file| file.is_file()).unwrap();
        let boot = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let puppet = Puppet { world, runtime, boot, job: OnceCell::new() };
        world.until("the puppet registers", || puppet.register().is_some());
        puppet
    }

    pub fn tells_the_end(&self, final_offset: i64) {
        let what = What::Ended {
            kept: None,
            exit_code: Some(0),
            signal: None,
            cause: None,
            message: None,
            final_offset,
            active_ms: 1,
            started: true,
            ended_ago_ms: 0,
            output: None,
            stdout_tail: None,
        };
        self.report(Some(what), None);
    }

    pub fn sends(&self, text: &str) {
        self.report(None, Some(text));
    }

    fn report(&self, what: Option<What>, text: Option<&str>) {
        self.world.until("the puppet is heard", || {
            let Some(session) = self.register() else { return false };
            let (job, epoch, step) = *self.job.get().expect("it has registered");
            let fact = |what: &What| Fact { job, epoch, step: Some(step), at_ms: 1, what: what.clone() };
            let facts = what.iter().map(fact).collect();
            let frame = |text: &str| Frame { stream: Stream::Stdout, at_ms: 1, data: Base64(text.into()) };
            let chunk = |text: &&str| LogChunk { job, epoch, step, offset: 0, frames: vec![frame(text)] };
            let logs = text.iter().map(chunk).collect();
            let batch = ReportBatch { session, facts, logs, durable_waits: 0 };
            let answer = self.runtime.block_on(self.client().post("/runner/v1/report", &batch));
            answer.is_ok_and(|_: ReportAnswer| true)
        });
    }

    fn client(&self) -> Client {
        Client::new(&self.boot.control_url, Some(&format!("{}.{}", self.boot.name, self.boot.token))).unwrap()
    }

    fn register(&self) -> Option<i64> {
        let register = Register {
            name: self.boot.name.clone(),
            nonce: self.boot.nonce.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: "puppet".to_owned(),
            jobs: Vec::new(),
            stubs: Vec::new(),
            cpu_milli: None,
            memory_bytes: None,
            containment: None,
            sandbox: None,
        };
        let posted = self.runtime.block_on(self.client().post("/runner/v1/register", &register));
        let registered: Registered = posted.ok()?;
        if let Some(job) = registered.desired.jobs.first() {
            self.job.get_or_init(|| (job.job, job.epoch, job.steps[0].step));
        }
        Some(registered.session)
    }
}
