//! Requests of simulated users: each is repeated with the same idempotency key until it is answered. Calls the engine as
//! the server's handlers do.

use crate::cached_run;
use crate::client::Wish;
use crate::faults::Kind;
use crate::follower::Follower;
use crate::process::SERVER;
use crate::sim::Promise;
use crate::time::now;
use crate::world::{Happening, World};
use engine::Engine;
use engine::allocation::SlotRender;
use engine::instance::InstanceRender;
use engine::run::{Action, KeyedResponse, Render};
use model::spec::RunKind;
use model::time::SECOND;
use model::{Failure, JobId, Refused, RunId};
use std::sync::Arc;

/// A client that was not answered asks again after this.
const ASK_AGAIN_MS: i64 = 2 * SECOND;

impl World {
    /// A client's next request, or the same again if it was not answered.
    pub fn ask(&mut self, index: usize) {
        let lost = self.faults.strikes(Kind::Lost).is_some();
        let Some(engine) = self.serving().filter(|_| !lost) else {
            return self.after(ASK_AGAIN_MS, Happening::Client { index });
        };
        let wish =
            self.clients[index].wishes.last().map(|(_, wish)| *wish).filter(|_| self.clients[index].run.is_some());
        let mut answer = self.request(&engine, index, wish);
        if self.faults.strikes(Kind::Doubled).is_some() && !self.fate.is_dead(SERVER) {
            answer = self.request_again(&engine, index, wish, answer);
        }
        self.fate.was_troubled(); // the client has received the error
        let unheard = self.faults.strikes(Kind::Lost).is_some() || self.fate.is_dead(SERVER);
        if unheard || matches!(answer, Err(Failure::Trouble(_))) {
            return self.after(ASK_AGAIN_MS, Happening::Client { index });
        }
        self.heard(index, wish, answer);
        if let Some((at, _)) = self.clients[index].wishes.last().filter(|_| !self.clients[index].turned_away) {
            let ms = (at - self.now.ms()).max(0);
            self.after(ms, Happening::Client { index });
        }
    }

    fn request(&mut self, engine: &Engine, index: usize, wish: Option<Wish>) -> Result<Vec<u8>, Failure> {
        let client = &self.clients[index];
        let org = self.orgs[client.org];
        let key = Some(client.key(org));
        let render: Render = Arc::new(|picture| picture.run.id.to_string().into_bytes());
        let answer = match (client.run, wish) {
            (None, _) | (_, None) => now(engine.submit(client.submission(org), key, render)).and_then(body),
            (Some(run), Some(Wish::Ask(action))) => {
                let silent = self.silent_jobs(run, action);
                let answer = now(engine.act_on(org, run, action, key, render)).and_then(body);
                self.given_up(silent);
                answer
            }
            (Some(run), Some(Wish::Meddle)) => {
                let other = self.orgs[1 - client.org];
                now(engine.act_on(other, run, Action::Cancel { abort: true }, None, render)).and_then(body)
            }
            (Some(run), Some(wish @ (Wish::Invalidate { .. } | Wish::Collect { .. } | Wish::Call { .. }))) => {
                cached_run::request(engine, (client, org), run, wish, key)
            }
            (Some(run), Some(Wish::Delete)) => now(engine.delete(org, run)).map(|()| Vec::new()),
            (Some(run), Some(wish)) => self.about_its_slot(engine, index, run, wish),
        };
        let said = answer.as_ref().map(|body| String::from_utf8_lossy(body).into_owned());
        self.note(format_args!("client {index} asks {wish:?}: {said:?}"));
        answer
    }

    /// Whom `retry --force` can mean: jobs of the run on machines that are not heard.
    fn silent_jobs(&self, run: RunId, action: Action) -> Vec<JobId> {
        if action != (Action::Retry { force: true }) {
            return Vec::new();
        }
        let jobs = now(self.store.read("sim.jobs", move |tx| store::job::of_run(tx, run)));
        let jobs = jobs.expect("a database in memory is read").into_iter();
        jobs.filter(|job| !job.status.is_end() && job.silent_since.is_some()).map(|job| job.id).collect()
    }

    /// Those of them that have ended with the request are gone by a person's word, whether the answer was heard or not.
    fn given_up(&mut self, silent: Vec<JobId>) {
        for id in silent {
            let job = now(self.store.read("sim.job", move |tx| store::job::find(tx, id)));
            if job.expect("a database in memory is read").is_some_and(|job| job.fenced) {
                self.truth.given_up(id);
            }
        }
    }

    /// What a person wants of the place where the run was: nothing, if there never was one.
    fn about_its_slot(&self, engine: &Engine, index: usize, run: RunId, wish: Wish) -> Result<Vec<u8>, Failure> {
        let client = &self.clients[index];
        let org = self.orgs[client.org];
        let slots = now(engine.allocations(org, i64::MAX, 20))?;
        let Some(slot) = slots.iter().find(|slot| slot.run == Some(run)).map(|slot| &slot.allocation) else {
            return Err(Refused::not_found("allocation", run).into());
        };
        let render: SlotRender = Arc::new(|picture| picture.allocation.id.to_string().into_bytes());
        let key = Some(client.key(org));
        match wish {
            Wish::Extend { ms } => now(engine.extend(org, slot.id, Some(ms), key, render)).and_then(body),
            Wish::Release => now(engine.release(org, slot.id, key, render)).and_then(body),
            Wish::Terminate { force } => {
                let render: InstanceRender = Arc::new(|picture| picture.workflow_state.clone().into_bytes());
                now(engine.terminate_instance((org, "somebody".into()), slot.instance, force, key, render))
                    .and_then(body)
            }
            Wish::Ask(_)
            | Wish::Delete
            | Wish::Meddle
            | Wish::Invalidate { .. }
            | Wish::Collect { .. }
            | Wish::Call { .. } => unreachable!("asked of the run itself"),
        }
    }

    /// The same request twice: one effect, one answer.
    fn request_again(
        &mut self,
        engine: &Engine,
        index: usize,
        wish: Option<Wish>,
        first: Result<Vec<u8>, Failure>,
    ) -> Result<Vec<u8>, Failure> {
        let again = self.request(engine, index, wish);
        let keyed =
            matches!(wish, None | Some(Wish::Ask(_) | Wish::Extend { .. } | Wish::Release | Wish::Terminate { .. }));
        let (one, other) = (told(&first), told(&again));
        if keyed && one.is_some() && other.is_some() && one != other {
            let what = format!("client {index} asked twice with one key, and got two answers: {one:?}, {other:?}");
            self.complain(Promise::Safe, what);
        }
        // Who heard the first needs no second; who did not has the second.
        if first.is_ok() { first } else { again }
    }

    fn heard(&mut self, index: usize, wish: Option<Wish>, answer: Result<Vec<u8>, Failure>) {
        let poor = self.poor;
        let client = &mut self.clients[index];
        match (wish, answer) {
            (None, Ok(body)) => {
                client.run = String::from_utf8(body).ok().and_then(|text| text.parse().ok());
                let (kind, org, run) = (client.spec.kind, self.orgs[client.org], client.run);
                if let Some(run) = run.filter(|_| kind == RunKind::External) {
                    self.add_external(org, run);
                }
                self.follow(index);
            }
            (None, Err(Failure::Refused(Refused::Unaffordable { .. }))) if poor => client.turned_away = true,
            (None, Err(failure)) => self.complain(Promise::Safe, format!("a good run was refused: {failure}")),
            (Some(Wish::Meddle), answer) => {
                client.wishes.pop();
                if !matches!(answer, Err(Failure::Refused(Refused::NotFound { .. }))) {
                    self.complain(Promise::Safe, format!("another org's request was heard: {answer:?}"));
                }
            }
            // Without money it cannot start: they give it up.
            (Some(Wish::Ask(Action::Start)), Err(Failure::Refused(Refused::Unaffordable { .. }))) if poor => {
                client.wishes = vec![(0, Wish::Delete)];
            }
            (Some(wish), answer) => {
                client.wishes.pop();
                let met = answer.as_ref().ok().and_then(|body| cached_run::met(wish, body));
                met.into_iter().for_each(|met| self.tool.book().meets(met));
                client.retries += i64::from(answer.is_ok() && matches!(wish, Wish::Ask(Action::Retry { .. })));
                client.deleted |= answer.is_ok() && wish == Wish::Delete;
            }
        }
    }

    /// Some watch what they started.
    fn follow(&mut self, index: usize) {
        if self.chance.one_in(2) && self.clients[index].spec.call.is_none() {
            let every_ms = self.chance.pick(&[4 * SECOND, 30 * SECOND, 120 * SECOND]);
            let follower = Follower::new(index, every_ms);
            self.followers.push(follower);
            let index = self.followers.len() - 1;
            self.after(every_ms, Happening::Follower { index });
        }
    }
}

/// The answer of a keyed request; a refusal that was remembered is one.
fn body(answer: KeyedResponse) -> Result<Vec<u8>, Failure> {
    if answer.status < 400 {
        return Ok(answer.body);
    }
    Err(Refused::Conflict { why: String::from_utf8_lossy(&answer.body).into_owned() }.into())
}

/// What was answered under a key, in words: nothing where the answer is not kept.
fn told(answer: &Result<Vec<u8>, Failure>) -> Option<String> {
    match answer {
        Ok(body) => Some(String::from_utf8_lossy(body).into_owned()),
        Err(Failure::Refused(Refused::Unaffordable { .. } | Refused::BudgetSpent { .. } | Refused::Invalid { .. })) => {
            None
        }
        Err(Failure::Refused(refused)) => Some(refused.to_string()),
        Err(Failure::Trouble(_)) => None,
    }
}
