//! What a run reserves, is charged and gets back. Every movement is an attempt's event first and a ledger row with a key second.

use crate::run::KeyedResponse;
use crate::run_tx::RunTx;
use crate::{Engine, EngineContext};
use model::attempt::{Attempt, AttemptConsequence, AttemptEvent, AttemptStatus, MINIMUM_CHARGE};
use model::bug;
use model::hierarchy::Rows;
use model::run::RunStatus;
use model::spec::{RunKind, RunTerms};
use model::usage::Usage;
use model::{Credits, Failure, JobId, OrgId, Outcome, Refused, Timestamp};
use std::sync::Arc;
use store::idempotency::Key;
pub use store::ledger::Entered;
use store::usage::Spent;
use store::{Entry, EntryKind};

/// What one org may own in sum. Amounts are 64-bit micro-credits: sums of a few such balances still fit.
const MOST_OWNED: Credits = Credits::whole(1_000_000_000_000);

/// Turns a balance into the bytes that are answered.
pub type OrgRender = Arc<dyn Fn(&store::org::Org) -> Vec<u8> + Send + Sync>;

/// What starting this run sets aside: the price of min(max_duration, an hour) on all its machines, within what is left of its budget.
pub fn estimate(context: &EngineContext, spec: &RunTerms, spent: Credits) -> Result<Credits, Failure> {
    let hourly = context.provider(&spec.provider)?.price(&spec.resources, &spec.region, false);
    let ahead = spec.max_duration_ms.unwrap_or(i64::MAX).min(context.config.money.ahead_ms);
    // A run of agents sets aside what its models may cost, and an hour of each machine that it may have at once.
    let machines = match spec.kind {
        RunKind::Agents => spec.plan.machines,
        RunKind::External => 0,
        _ => spec.nodes,
    };
    let compute = Credits(hourly.per_hour_for(ahead).micro() * machines);
    let price = (compute + spec.plan.estimate).max(MINIMUM_CHARGE);
    let Some(budget) = spec.budget else { return Ok(price) };
    if spent > Credits::ZERO && budget - spent < MINIMUM_CHARGE {
        return Err(Refused::BudgetSpent { budget, spent }.into());
    }
    Ok(price.min(budget - spent))
}

impl RunTx<'_> {
    pub(crate) fn open_attempt(&mut self) -> Result<(), Failure> {
        self.attempts.push(crate::run_tx::Tracked::new(Attempt::open(self.run.id, self.run.attempt, self.at)));
        Ok(())
    }

    pub(crate) fn reserve_for_start(&mut self) -> Result<(), Failure> {
        let spent = self.spent_before()?;
        let mut amount = estimate(self.context, &self.run.spec, spent)?;
        if let Some(importing) = self.importing {
            amount = self.reserve_for_import(importing, amount)?;
        }
        if self.replaying {
            amount = amount.min(MINIMUM_CHARGE);
        }
        // A caller that has waited for an execution gets what that gave, also if its org has no credits left by then.
        if self.replaying && self.run.call.as_ref().is_some_and(|called| called.execution.is_some()) {
            amount = amount.min(store::org::spendable(self.tx, self.run.org)?);
        }
        self.credits_end_at(None);
        self.money(AttemptEvent::Reserved(amount), format!("{}:{}:reserve:0", self.run.id, self.run.attempt), "start")
    }

    /// R72: an org that is nearly out of credits repeats nothing by itself. What is set aside for the run is there to be spent.
    pub(crate) fn has_credits_to_retry(&mut self) -> Result<bool, Failure> {
        let left = self.attempt()?.it.left();
        Ok(left + store::org::spendable(self.tx, self.run.org)? >= self.context.config.limits.least_to_retry())
    }

    /// What earlier attempts cost: a budget is the whole run's, however often it is tried.
    pub(crate) fn spent_before(&mut self) -> Result<Credits, Failure> {
        let current = self.run.attempt;
        if current == 1 {
            return Ok(Credits::ZERO);
        }
        let mut all = store::attempt::of_run(self.tx, self.run.id)?;
        for kept in &self.attempts {
            all.retain(|attempt| attempt.number != kept.it.number);
            all.push(kept.it.clone()); // as this transaction has left it
        }
        Ok(all.iter().filter(|attempt| attempt.number != current).map(|attempt| attempt.charged).sum())
    }

    /// The reservation follows the run an hour ahead, within its budget and what the org has. False: nothing is left to run on.
    /// When no more can be reserved, an event says so while the run still has credits left.
    pub(crate) fn top_up(&mut self, job: JobId, hourly: Credits) -> Result<bool, Failure> {
        let ahead = hourly.per_hour_for(self.context.config.money.ahead_ms);
        let enough = |left: Credits| left.micro() * 2 >= ahead.micro();
        let before = self.attempt()?.it.left();
        if !enough(before) && !self.all_is_paid()? {
            self.reserve_more(job, ahead - before, "an hour ahead")?;
        }
        let left = self.attempt()?.it.left();
        if enough(left) || self.all_is_paid()? {
            self.credits_end_at(None);
            return Ok(true);
        }
        self.warn_of_low_credits(left, hourly)?;
        Ok(left > Credits::ZERO)
    }

    /// Once, when no more could be set aside; when that changes and comes again, again.
    fn warn_of_low_credits(&mut self, left: Credits, hourly: Credits) -> Result<(), Failure> {
        let Some(until) = left.lasts_ms(hourly).map(|ms| self.at + ms) else { return Ok(()) };
        if self.run.credits_end_at.is_none() && self.run.termination.is_none() {
            let available = store::org::spendable(self.tx, self.run.org)?;
            let budget = self.run.spec.budget.map(|budget| budget.to_string());
            let body = store::body!({ "left": left.to_string(), "until": until, "budget": budget, "available": available.to_string() });
            self.publish("run.low_credits", body);
        }
        self.credits_end_at(Some(until));
        Ok(())
    }

    fn credits_end_at(&mut self, until: Option<Timestamp>) {
        if self.run.credits_end_at != until {
            let mut next = self.run.clone();
            next.credits_end_at = until;
            self.set_run(next);
        }
    }

    /// Whether all the time that the run may take is set aside, with as many machines as it has had at most: then its deadline ends it,
    /// not its money.
    fn all_is_paid(&mut self) -> Result<bool, Failure> {
        let longest = self.run.spec.max_duration_ms;
        let attempt = &self.attempt()?.it;
        let hourly = Credits(attempt.tree.jobs.most_hourly_micro);
        Ok(longest.is_some_and(|ms| attempt.reserved >= hourly.per_hour_for(ms)))
    }

    /// When the account of the run's active jobs is to be looked at: at the end of their window, or of what is set aside for them.
    pub(crate) fn next_charge(&mut self) -> Result<Option<Timestamp>, Failure> {
        let jobs = self.attempt()?.it.tree.jobs.clone();
        let Some(from) = jobs.charged_to.filter(|_| self.run.status == RunStatus::Running) else { return Ok(None) };
        let window = from + self.context.config.money.window_ms;
        // What is left ends none of these, so nothing is to be done when it is used up.
        if self.run.termination.is_some() || self.run.imported_at.is_some() || self.all_is_paid()? {
            return Ok(Some(window));
        }
        let paid_ms = self.attempt()?.it.left().lasts_ms(jobs.hourly());
        Ok(Some(paid_ms.map_or(window, |ms| window.min(from + ms))))
    }

    /// So much more, as far as the budget and the org's credits go. Once a window and job.
    fn reserve_more(&mut self, job: JobId, wanted: Credits, memo: &str) -> Result<(), Failure> {
        let (reserved, spent) = (self.attempt()?.it.reserved, self.spent_before()?);
        let room = self.run.spec.budget.map_or(wanted, |budget| budget - spent - reserved);
        let available = store::org::spendable(self.tx, self.run.org)?;
        let amount = wanted.min(room).min(available);
        if amount <= Credits::ZERO {
            return Ok(());
        }
        let window = self.job(job)?.windows;
        let key = format!("{}:{}:{job}:{window}:{}", self.run.id, self.run.attempt, memo.replace(' ', "-"));
        self.money(AttemptEvent::Reserved(amount), key, memo)
    }

    /// Charges a job's compute up to `until`: one row a window, keyed, never beyond the reservation.
    /// Time that exceeded the reservation (no worker was there to extend it) is reserved now, as far as possible.
    pub(crate) fn charge_job(&mut self, id: JobId, until: Timestamp) -> Result<(), Failure> {
        let mut job = self.job(id)?.clone();
        let Some(from) = job.charged_to.filter(|from| *from < until) else { return Ok(()) };
        let amount = Credits(job.price_micro).per_hour_for(until.since(from));
        job.charged_to = Some(until);
        job.windows += 1;
        let mut key = format!("{}:{}:{}:{}", self.run.id, self.run.attempt, job.id, job.windows);
        if bug!(charge_without_its_key) {
            key = format!("{key}:{}", self.tx.next_id());
            (job.charged_to, job.windows) = (Some(from), job.windows - 1);
        }
        self.set_job(job)?;
        let left = self.attempt()?.it.left();
        if amount > left {
            self.reserve_more(id, amount - left, "used before it was set aside")?;
        }
        let job = self.job(id)?.clone();
        let agent = Rows::agent(self, job.agent)?.name;
        let usage = Usage { machine_ms: until.since(from), ..Usage::default() };
        let spent = Spent { agent, provider: job.provider, usage, ..self.spent() };
        self.charge(amount, key, "compute", spent).map(drop)
    }

    /// What a charge of this run is summed under, as far as it is not about an agent, a step or a machine.
    pub(crate) fn spent(&self) -> Spent {
        Spent { run: Some(self.run.id), ..Spent::of(self.run.org) }
    }

    /// Charges so much, as far as it was set aside, and adds it to the sums of usage. Returns what was charged.
    pub(crate) fn charge(
        &mut self,
        amount: Credits,
        key: String,
        memo: &str,
        mut spent: Spent,
    ) -> Result<Credits, Failure> {
        let before = self.attempt()?.it.charged;
        self.money(AttemptEvent::Charged(amount), key, memo)?;
        let after = self.attempt()?.it.charged;
        spent.usage.charged = after - before;
        store::usage::add(self.tx, &spent)?;
        self.warn_of_budget(before, after)?;
        Ok(spent.usage.charged)
    }

    /// Closes the attempt's account: what was not used goes back.
    pub(crate) fn settle_attempt(&mut self) -> Result<(), Failure> {
        let status = match self.run.status {
            RunStatus::Completed => AttemptStatus::Completed,
            RunStatus::Cancelled => AttemptStatus::Cancelled,
            _ => AttemptStatus::Failed,
        };
        let key = format!("{}:{}:end", self.run.id, self.run.attempt);
        let before = self.attempt()?.it.charged;
        self.money(AttemptEvent::Ended(status), key, "end of the attempt")?;
        // The least that a completed attempt costs.
        let mut spent = self.spent();
        spent.usage.charged = self.attempt()?.it.charged - before;
        store::usage::add(self.tx, &spent)
    }

    /// So much more for a step that is about to begin, as far as the budget and the org's credits go.
    pub(crate) fn reserve_step(&mut self, wanted: Credits, key: String) -> Result<(), Failure> {
        let (reserved, spent) = (self.attempt()?.it.reserved, self.spent_before()?);
        let room = self.run.spec.budget.map_or(wanted, |budget| budget - spent - reserved);
        let amount = wanted.min(room).min(store::org::spendable(self.tx, self.run.org)?);
        if amount <= Credits::ZERO { Ok(()) } else { self.money(AttemptEvent::Reserved(amount), key, "for a step") }
    }

    pub(crate) fn money(&mut self, event: AttemptEvent, key: String, memo: &str) -> Result<(), Failure> {
        let (org, run, at) = (self.run.org, self.run.id, self.at);
        let kept = self.attempt()?;
        let Outcome::Moved { next, consequences } = model::attempt::apply(&kept.it, &event, at)? else { return Ok(()) };
        let number = next.number;
        kept.set(next);
        for consequence in consequences {
            let (kind, amount) = match consequence {
                AttemptConsequence::Reserve(amount) => (EntryKind::Reserve, amount),
                AttemptConsequence::Charge(amount) => (EntryKind::Charge, amount),
                AttemptConsequence::Refund(amount) => (EntryKind::Refund, amount),
            };
            self.tx.ledger(Entry::new(org, kind, amount, key.clone()).of(run, number).memo(memo));
        }
        Ok(())
    }
}

impl Engine {
    /// Adds credits by hand.
    pub async fn add_credits(
        &self,
        org: OrgId,
        amount: Credits,
        memo: String,
        key: Option<Key>,
        render: OrgRender,
    ) -> Result<KeyedResponse, Failure> {
        self.keyed(store::Lane::Normal, "credits.add", key, 200, move |tx| {
            let mut balance = store::org::find(tx, org)?;
            let most =
                MOST_OWNED.micro().saturating_sub(balance.available.micro()).saturating_sub(balance.reserved.micro());
            if amount.micro() > most {
                let why = format!("an org has at most {MOST_OWNED} credits: add at most {}", Credits(most.max(0)));
                return Err(Refused::invalid("amount", why).into());
            }
            let row_key = format!("topup:{}", tx.next_id());
            tx.ledger(Entry::new(org, EntryKind::Topup, amount, row_key).memo(memo.clone()));
            balance.available = balance.available + amount;
            Ok(render(&balance))
        })
        .await
    }

    pub async fn balance(&self, org: OrgId) -> Result<store::org::Org, Failure> {
        self.store.read_inline("credits.balance", move |tx| store::org::find(tx, org)).await
    }

    pub async fn ledger(&self, org: OrgId, after: i64, limit: i64) -> Result<Vec<Entered>, Failure> {
        self.store.read("credits.ledger", move |tx| store::ledger::after(tx, org, after, limit)).await
    }

    pub async fn ledger_of_run(
        &self,
        org: OrgId,
        run: model::RunId,
        after: i64,
        limit: i64,
    ) -> Result<Vec<Entered>, Failure> {
        self.store.read("credits.ledger_of_run", move |tx| store::ledger::of_run(tx, org, run, after, limit)).await
    }
}
