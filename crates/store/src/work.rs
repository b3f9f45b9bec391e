//! Work items: one row per (kind, subject) with the time when the subject is due to be reconciled. They cannot be lost (a wake raises
//! `gen`, and a finish that saw an older `gen` leaves the item due) nor doubled (every claim raises `fence`, which every holder checks
//! first).

mod asking;
mod parking;

pub use asking::{Asking, parked as parked_of_providers};
pub use parking::{Shares, may_bring_back};

use crate::args;
use crate::post::Meaning;
use crate::sql::{Rank, Sql};
use crate::tx::Tx;
use crate::value::{Row, Value};
use crate::worker::{self, Worker};
use model::bug;
use model::string_enum;
use model::time::MINUTE;
use model::{Failure, Refused, Timestamp, Trouble};
use std::collections::BTreeMap;

/// Deaths of its holder after which an item is claimed alone, so that the next one proves something about it.
pub const SUSPECT_AFTER: i64 = 2;
/// Deaths alone after which the item is given up and its subject fails.
const DEAD_AFTER: i64 = 5;
/// A holder that dies longer after its claim than this did not die of it: an agent is held for hours, and processes end for many reasons. Our
/// own outages do not count.
const BLAMED_FOR_MS: i64 = 10 * MINUTE;

string_enum! {
    /// Declared in the order of their names, as the database sorts them: processes of different versions must lock in the same order.
    pub enum WorkKind {
        /// The steps of an agent that a worker acts on.
        Agent = "agent",
        Allocation = "allocation",
        /// A pool of a provider that is being removed: when its machines are gone, so is what it has put on its hosts, then its row.
        Departure = "departure",
        /// An execution of a call: its backend is started, looked after and answered for.
        Execution = "execution",
        Gather = "gather",
        /// A pool of a provider with several hosts: each is asked what it has and whether it can be used.
        Hosts = "hosts",
        Instance = "instance",
        /// An execution of a call whose adapter is a program: it is asked, and answered for.
        Invocation = "invocation",
        Job = "job",
        /// The leases of a step's children, or its own, that programs outside work on.
        Lease = "lease",
        /// A machine whose runner cannot dial the control plane: the worker that holds this item carries its connections.
        Link = "link",
        /// A manifest whose retention ends, or whose workflow may have died.
        Manifest = "manifest",
        /// A question to people of which the program of `[notify]` is told.
        Notify = "notify",
        /// An orphan whose end a person has asked for.
        Orphan = "orphan",
        /// New orphans of which the program of `[notify]` is told.
        OrphanNotice = "orphan_notice",
        Pool = "pool",
        Run = "run",
        /// A pool (provider and region) whose provider is asked what it lists.
        Scan = "scan",
        /// An instance whose spawn ended with an unknown outcome: its name is looked for.
        ScanName = "scan_name",
        /// The logs of a command's tries.
        StepLog = "step_log",
        Sweep = "sweep",
        Workflow = "workflow",
    }
}

/// Items of a class share permits, claims and due times with their own class only: acts that hang hold up no other work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkClass {
    /// Decides and writes rows. Some kinds call providers, for which their holder has a permit of the provider.
    Control,
    /// Calls tools of steps, which may take hours.
    Act,
    /// Carries connections of runners, for as long as their machines live.
    Link,
}

impl WorkClass {
    pub const ALL: [WorkClass; 3] = [WorkClass::Control, WorkClass::Act, WorkClass::Link];

    fn number(self) -> i64 {
        match self {
            WorkClass::Control => 0,
            WorkClass::Act => 1,
            WorkClass::Link => 3, // 2 are parked items
        }
    }
}

/// An item that a worker has leased: what it works on, and the fence of its lease.
pub type InHand = (WorkKind, i64, i64);

/// A claimed item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    pub kind: WorkKind,
    pub subject: i64,
    /// What its holder has seen: a wake after it makes the item due again.
    pub generation: i64,
    pub fence: i64,
    /// Its holders died too often: fail the subject with that cause instead of working on it.
    pub dead: bool,
    /// Its holder has a permit of this provider (see `Asking`). An item of a kind that calls providers and has none must not call one.
    pub asks: Option<i64>,
}

impl Item {
    /// For a holder that has read everything again after `hold`: wakes up to `generation` are answered by it.
    pub fn seen(self, generation: i64) -> Item {
        Item { generation, ..self }
    }
}

/// When subjects that need nothing now are to be looked at again (never, if none).
pub type Rests = BTreeMap<(WorkKind, i64), Option<Timestamp>>;

/// What a claim came to.
#[derive(Debug, Default)]
pub struct Claimed {
    /// Leased to this worker.
    pub items: Vec<Item>,
    /// How many were finished without a lease, because nothing had to be done.
    pub rested: usize,
    /// How many were set aside, because enough acts of their org, or enough items of their provider, are held.
    pub parked: usize,
}

/// Leases up to `limit` due items to this worker: items without a holder or with a dead one, oldest first. An item that is suspected of
/// killing its holders is leased alone, when this worker holds nothing else.
pub fn claim(tx: &mut Tx, by: &Worker, class: WorkClass, limit: i64) -> Result<Vec<Item>, Failure> {
    let holding = holding(tx, by, class)?;
    claim_awake(tx, by, &holding, (limit, limit as usize), |_, _| Ok(Rests::new())).map(|claimed| claimed.items)
}

/// What a worker has leased of a class.
#[derive(Debug, Clone)]
pub struct Holding {
    class: WorkClass,
    pub items: i64,
    /// One that is suspected of killing its holders, and nothing beside it.
    alone: bool,
    /// Of acts.
    shares: Shares,
    /// Of items that call providers.
    asking: Asking,
}

impl Holding {
    pub fn within(self, shares: Shares, asking: Asking) -> Holding {
        Holding { shares, asking, ..self }
    }
}

pub fn holding(tx: &mut Tx, by: &Worker, class: WorkClass) -> Result<Holding, Failure> {
    let held = tx.row(&HELD, &args![by.id, by.boot, class.number()])?.expect("a count is a row");
    // Who has held a suspect for long enough has cleared it, and may take others beside it.
    let alone = match held.opt_at(1)? {
        Some(leased_at) => leased_at >= worker::lived_since(tx, BLAMED_FOR_MS)?,
        None => false,
    };
    Ok(Holding { class, items: held.int(0)?, alone, shares: Shares::UNBOUNDED, asking: Asking::unbounded() })
}

/// `claim` for a worker that holds `holding`: reads `looked_at` due items and leases at most `limit`. Items for which `resting` finds
/// nothing to do are not leased but finished here, all by one statement, as their holder would have finished them. Their rows are
/// locked, so a wake comes before or after; their fence is raised, so an earlier holder that is still alive is refused.
pub fn claim_awake(
    tx: &mut Tx,
    by: &Worker,
    holding: &Holding,
    (looked_at, limit): (i64, usize),
    resting: impl Fn(&mut Tx, &[(WorkKind, i64)]) -> Result<Rests, Failure>,
) -> Result<Claimed, Failure> {
    worker::check(tx, by)?;
    if holding.alone {
        return Ok(Claimed::default());
    }
    let at = tx.at();
    let mut found = Vec::new();
    let alive_since = worker::alive_since(tx, at);
    let due = match holding.class {
        WorkClass::Link => &DUE,
        WorkClass::Control => {
            holding.asking.bring_back(tx)?;
            &asking::DUE
        }
        WorkClass::Act => {
            parking::bring_back(tx, holding.shares)?;
            &DUE_ACTS
        }
    };
    for row in tx.rows(due, &args![at, alive_since, looked_at, holding.class.number()])? {
        found.push(Candidate::read(&row)?);
    }
    if found.is_empty() {
        return Ok(Claimed::default()); // the usual case of a poll
    }
    // Read after the rows are locked: a worker that started meanwhile is seen alive.
    let owned = found.iter().any(|candidate| candidate.owner.is_some());
    let living = if owned { worker::living(tx)? } else { Default::default() };
    found.retain(|candidate| candidate.owner.is_none_or(|owner| !living.contains(&owner) && !bug!(dead_holder_kept)));
    if owned {
        let blamed_since = worker::lived_since(tx, BLAMED_FOR_MS)?;
        found.iter_mut().for_each(|candidate| candidate.count_death(blamed_since));
    }
    let mut chosen = chosen(found, holding.items);
    // A suspect is not passed to `resting`: it must run alone, so that its next death or progress is its own.
    let keys: Vec<_> = chosen.iter().filter(|item| !item.alone).map(|item| (item.kind, item.subject)).collect();
    let rests = resting(tx, &keys)?;
    let mut put_off = Vec::with_capacity(rests.len());
    chosen.retain(|item| match rests.get(&(item.kind, item.subject)) {
        Some(next) => {
            put_off.push(args![
                item.kind.as_str(),
                item.subject,
                item.generation,
                item.fence + 1,
                *next,
                item.kind.class().number()
            ]);
            false
        }
        None => true,
    });
    let rested = put_off.len();
    tx.insert_many(&REST, put_off)?;
    let (chosen, parked) = match holding.class {
        WorkClass::Control => holding.asking.within_limit(tx, chosen, limit)?,
        WorkClass::Act | WorkClass::Link => parking::within_limit(tx, chosen, limit, holding.shares)?,
    };
    Ok(Claimed { items: lease(tx, by, chosen)?, rested, parked })
}

/// What this worker holds of a class. If the answer of a claim was lost, or an item could not be released, the row names a live worker that
/// does not work on it. A worker that holds more rows than it has items `in_hand` releases those that it does not know, never one in
/// hand.
pub fn give_back_unknown(tx: &mut Tx, by: &Worker, class: WorkClass, in_hand: &[InHand]) -> Result<Holding, Failure> {
    let held = holding(tx, by, class)?;
    let known = in_hand.iter().filter(|(kind, ..)| kind.class() == class).count() as i64;
    if held.items <= known {
        return Ok(held);
    }
    let mut unknown = Vec::new();
    for row in tx.rows(&HELD_ITEMS, &args![by.id, by.boot, class.number()])? {
        let item = (read_kind(&row, 0)?, row.int(1)?, row.int(2)?);
        if !in_hand.contains(&item) {
            unknown.push(item);
        }
    }
    tracing::warn!(items = unknown.len(), "this worker held items that it does not work on: they are released");
    for (kind, subject, fence) in unknown {
        tx.exec(&RELEASE, &args![kind.as_str(), subject, fence])?;
    }
    holding(tx, by, class)
}

/// The first statement of a transaction that works on an item: fails if another worker has claimed it since. Returns its current
/// generation.
pub fn hold(tx: &mut Tx, item: &Item) -> Result<i64, Failure> {
    if bug!(fence_unchecked) {
        return Ok(find(tx, item.kind, item.subject)?.map_or(item.generation, |known| known.generation));
    }
    let row = tx.row(&HOLD, &args![item.kind.as_str(), item.subject, item.fence])?;
    let generation = row.ok_or_else(|| fenced(item.kind, item.subject))?.int(0)?;
    tx.note_held((item.kind, item.subject), item.fence);
    Ok(generation)
}

/// Releases the item: due again at `next` (never, if none), or at once if it was woken meanwhile. Staged: written at the end of the
/// transaction.
pub fn finish(tx: &mut Tx, item: &Item, next: Option<Timestamp>) {
    tx.finish((item.kind, item.subject), Finish { fence: item.fence, seen: item.generation, next });
}

/// The due time of the earliest item of a class without a holder.
pub fn next_due(tx: &mut Tx, class: WorkClass) -> Result<Option<Timestamp>, Failure> {
    tx.row(&NEXT_DUE, &args![class.number()])?.map_or(Ok(None), |row| row.opt_at(0))
}

/// Items that are due and not finished, held or not.
pub fn count_due(tx: &mut Tx) -> Result<i64, Failure> {
    let at = tx.at();
    tx.row(&COUNT_DUE, &args![at])?.expect("a count is a row").int(0)
}

/// What is known about an item, for `why` and `audit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemState {
    pub kind: WorkKind,
    pub subject: i64,
    pub due: Option<Timestamp>,
    pub generation: i64,
    /// (worker, boot)
    pub owner: Option<(i64, i64)>,
    pub deaths: i64,
}

pub fn find(tx: &mut Tx, kind: WorkKind, subject: i64) -> Result<Option<ItemState>, Failure> {
    tx.row(&FIND, &args![kind.as_str(), subject])?.as_ref().map(read_known).transpose()
}

/// Items due before `before`, oldest first, held or not.
pub fn overdue(tx: &mut Tx, before: Timestamp, limit: i64) -> Result<Vec<ItemState>, Failure> {
    tx.rows(&OVERDUE, &args![before, limit])?.iter().map(read_known).collect()
}

/// Deletes the item of a subject that has ended and will not be woken again.
pub fn forget(tx: &mut Tx, kind: WorkKind, subject: i64) -> Result<(), Failure> {
    tx.post(&FORGET, args![kind.as_str(), subject])
}

/// Deletes up to `limit` items that have no due time and whose subject has ended; how many. A later wake makes a new row.
pub fn sweep(tx: &mut Tx, limit: i64) -> Result<u64, Failure> {
    tx.exec(&SWEEP, &args![limit])
}

pub(crate) struct Finish {
    fence: i64,
    seen: i64,
    next: Option<Timestamp>,
}

/// In the order of (kind, subject), wakes and finishes together: an API write and a holder would deadlock otherwise.
pub(crate) fn flush(
    tx: &mut Tx,
    mut wakes: BTreeMap<(WorkKind, i64), Timestamp>,
    finishes: BTreeMap<(WorkKind, i64), Finish>,
) -> Result<(), Failure> {
    for (key, mut finish) in finishes {
        if bug!(wake_lost_while_leased) {
            finish.seen = find(tx, key.0, key.1)?.map_or(finish.seen, |known| known.generation);
        }
        if let Some(at) = wakes.remove(&key) {
            finish.next = Some(finish.next.map_or(at, |next| next.min(at)));
        }
        let later = wakes.split_off(&key);
        wake(tx, std::mem::replace(&mut wakes, later))?;
        // If this transaction has locked the item, no other worker can have claimed it: COMMIT is sent without waiting for the answer.
        let meaning = Meaning::no_row(fenced(key.0, key.1)).certain(tx.holds(key, finish.fence));
        if bug!(fence_unchecked) && tx.row(&HOLD, &args![key.0.as_str(), key.1, finish.fence])?.is_none() {
            continue; // the bug: the other holder is not noticed
        }
        let now = tx.clock_at();
        tx.post_meaning(&FINISH, args![key.0.as_str(), key.1, finish.fence, finish.seen, finish.next, now], meaning)?;
    }
    wake(tx, wakes)
}

fn wake(tx: &mut Tx, mut wakes: BTreeMap<(WorkKind, i64), Timestamp>) -> Result<(), Failure> {
    if bug!(wake_lost_after_done) {
        let mut done =
            |key: &(WorkKind, i64)| find(tx, key.0, key.1).ok().flatten().is_some_and(|known| known.due.is_none());
        wakes.retain(|key, _| !done(key));
    }
    // A row that is deleted and made again starts with a fence above all earlier ones, so that an old holder is refused.
    let now = if wakes.is_empty() { Timestamp(0) } else { tx.at() };
    let rows = wakes
        .into_iter()
        .map(|((kind, subject), at)| args![kind.as_str(), subject, at, now, kind.class().number()])
        .collect();
    tx.insert_many(&WAKE, rows)
}

/// A due item and what its last holder left.
struct Candidate {
    kind: WorkKind,
    subject: i64,
    generation: i64,
    fence: i64,
    owner: Option<(i64, i64)>,
    leased_at: Timestamp,
    due: Timestamp,
    alone: bool,
    deaths: i64,
    deaths_alone: i64,
    /// Of an act for an agent: its org. Of an item that calls a provider: the provider, as a negative number (see `asking`).
    org: Option<i64>,
    /// It is leased without a permit of its provider.
    unasked: bool,
}

impl Candidate {
    fn read(row: &Row) -> Result<Candidate, Failure> {
        Ok(Candidate {
            kind: read_kind(row, 0)?,
            subject: row.int(1)?,
            generation: row.int(2)?,
            fence: row.int(3)?,
            owner: row.opt_int(4)?.zip(row.opt_int(5)?),
            alone: row.flag(6)?,
            deaths: row.int(7)?,
            deaths_alone: row.int(8)?,
            org: row.opt_int(9)?,
            leased_at: row.at(10)?,
            due: row.at(11)?,
            unasked: false,
        })
    }

    /// Its last claim ended by its worker's death. Only a death alone, and soon after the claim, is evidence against it.
    fn count_death(&mut self, blamed_since: Timestamp) {
        // A link is held for as long as its machine lives: that its worker died says nothing about it.
        if self.owner.is_none() || self.kind.class() == WorkClass::Link || bug!(poison_uncounted) {
            return;
        }
        if self.leased_at < blamed_since {
            (self.deaths, self.deaths_alone) = (0, 0); // it was worked on for long, which is progress
            return;
        }
        self.deaths += 1;
        self.deaths_alone += i64::from(self.alone);
    }

    fn suspect(&self) -> bool {
        self.deaths >= SUSPECT_AFTER
    }
}

/// If the oldest item is suspect, nothing is leased until this worker holds nothing else; then it is leased alone. Younger items wait
/// behind it, or it would wait for ever. Suspects that are not the oldest are skipped.
fn chosen(found: Vec<Candidate>, holding: i64) -> Vec<Candidate> {
    match found.first() {
        Some(first) if first.suspect() && holding > 0 => Vec::new(),
        Some(first) if first.suspect() => {
            found.into_iter().take(1).map(|item| Candidate { alone: true, ..item }).collect()
        }
        _ => found.into_iter().filter(|item| !item.suspect()).map(|item| Candidate { alone: false, ..item }).collect(),
    }
}

fn lease(tx: &mut Tx, by: &Worker, chosen: Vec<Candidate>) -> Result<Vec<Item>, Failure> {
    let mut items = Vec::with_capacity(chosen.len());
    let mut rows: Vec<[Value; 12]> = Vec::with_capacity(chosen.len());
    let at = tx.at();
    for c in chosen {
        let fence = c.fence + 1;
        rows.push(args![
            c.kind.as_str(),
            c.subject,
            c.generation,
            fence,
            by.id,
            by.boot,
            c.alone,
            c.deaths,
            c.deaths_alone,
            c.kind.class().number(),
            c.org,
            at
        ]);
        items.push(Item {
            kind: c.kind,
            subject: c.subject,
            generation: c.generation,
            fence,
            dead: c.deaths_alone >= DEAD_AFTER,
            asks: c.org.filter(|org| *org < 0 && !c.unasked),
        });
    }
    tx.insert_many(&LEASE, rows)?;
    Ok(items)
}

fn read_known(row: &Row) -> Result<ItemState, Failure> {
    Ok(ItemState {
        kind: read_kind(row, 0)?,
        subject: row.int(1)?,
        due: row.opt_at(2)?,
        generation: row.int(3)?,
        owner: row.opt_int(4)?.zip(row.opt_int(5)?),
        deaths: row.int(6)?,
    })
}

fn read_kind(row: &Row, column: usize) -> Result<WorkKind, Failure> {
    row.str(column)?.parse().map_err(|_| Trouble::internal("a work item of an unknown kind").into())
}

fn fenced(kind: WorkKind, subject: i64) -> Failure {
    Refused::Fenced { what: format!("{} {}", kind.as_str(), model::slug(subject)) }.into()
}

impl WorkKind {
    pub fn class(self) -> WorkClass {
        match self {
            WorkKind::Agent | WorkKind::Notify | WorkKind::OrphanNotice | WorkKind::Invocation => WorkClass::Act,
            WorkKind::Link => WorkClass::Link,
            _ => WorkClass::Control,
        }
    }
}

pub(crate) const ALL: &[&Sql] = &[
    &HELD,
    &HELD_ITEMS,
    &RELEASE,
    &DUE,
    &DUE_ACTS,
    &asking::DUE,
    &asking::PARKED_PROVIDERS,
    &asking::PARKED_INSTANCES,
    &parking::PARK,
    &parking::PARKED_ORGS,
    &parking::PARKED,
    &parking::HELD_ACTS,
    &parking::HELD_OF_ORG,
    &LEASE,
    &REST,
    &HOLD,
    &FINISH,
    &WAKE,
    &NEXT_DUE,
    &COUNT_DUE,
    &FIND,
    &OVERDUE,
    &SWEEP,
    &FORGET,
];

const HELD: Sql = Sql::new(
    "SELECT count(*), max(CASE WHEN alone = 1 THEN leased_at END) FROM work WHERE worker = $1 AND boot = $2 AND class = $3",
);
const HELD_ITEMS: Sql =
    Sql::new("SELECT kind, subject, fence FROM work WHERE worker = $1 AND boot = $2 AND class = $3");
const RELEASE: Sql =
    Sql::new("UPDATE work SET worker = NULL, boot = NULL, alone = 0 WHERE kind = $1 AND subject = $2 AND fence = $3");

/// Blocked by a holder's `FOR KEY SHARE`, so nothing is taken over in the middle of a transaction.
const DUE: Sql = Sql::new(
    "SELECT kind, subject, gen, fence, worker, boot, alone, deaths, deaths_alone, CAST(NULL AS BIGINT), leased_at, due FROM work
      WHERE class = $4 AND due <= $1
        AND (worker IS NULL OR NOT EXISTS (
             SELECT 1 FROM workers WHERE workers.id = work.worker AND workers.boot = work.boot AND workers.beat_at > $2))
      ORDER BY due LIMIT $3",
)
.skip_locked();

/// The same with the org of each agent and call.
const DUE_ACTS: Sql = Sql::new(
    "SELECT kind, subject, gen, fence, worker, boot, alone, deaths, deaths_alone,
            CASE work.kind
                 WHEN 'agent' THEN (SELECT runs.org_id FROM agents JOIN runs ON runs.id = agents.run_id WHERE agents.id = work.subject)
                 WHEN 'invocation' THEN (SELECT executions.org_id FROM executions WHERE executions.id = work.subject)
            END, leased_at, due FROM work
      WHERE class = $4 AND due <= $1
        AND (worker IS NULL OR NOT EXISTS (
             SELECT 1 FROM workers WHERE workers.id = work.worker AND workers.boot = work.boot AND workers.beat_at > $2))
      ORDER BY due LIMIT $3",
)
.skip_locked();

/// The rows exist and are locked: this only ever updates, many at once.
const LEASE: Sql = Sql::new(
    "INSERT INTO work (kind, subject, gen, fence, worker, boot, alone, deaths, deaths_alone, class, org_id, leased_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
         ON CONFLICT (kind, subject) DO UPDATE
        SET fence = excluded.fence, worker = excluded.worker, boot = excluded.boot, org_id = excluded.org_id,
            leased_at = excluded.leased_at,
            alone = excluded.alone, deaths = excluded.deaths, deaths_alone = excluded.deaths_alone",
);

/// The same rows, finished without a lease: they are locked, so no wake came since they were read.
const REST: Sql = Sql::new(
    "INSERT INTO work (kind, subject, gen, fence, due, class)
     VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (kind, subject) DO UPDATE
        SET fence = excluded.fence, due = excluded.due,
            worker = NULL, boot = NULL, alone = 0, deaths = 0, deaths_alone = 0",
);

const HOLD: Sql =
    Sql::new("SELECT gen FROM work WHERE kind = $1 AND subject = $2 AND fence = $3").key_share().locks(Rank::WorkItem);

/// An item that was woken meanwhile is due now, not at its earlier due time, or an item that was held for long would count as overdue. A
/// finish is progress: the counters of deaths are reset.
const FINISH: Sql = Sql::new(
    "UPDATE work SET due = CASE WHEN gen = $4 THEN $5 ELSE CAST($6 AS BIGINT) END,
                     worker = NULL, boot = NULL, alone = 0, deaths = 0, deaths_alone = 0
      WHERE kind = $1 AND subject = $2 AND fence = $3",
)
.locks(Rank::Wakes);

const WAKE: Sql = Sql::new(
    "INSERT INTO work (kind, subject, gen, due, fence, class) VALUES ($1, $2, 1, $3, $4, $5)
         ON CONFLICT (kind, subject) DO UPDATE
        SET gen = work.gen + 1,
            due = CASE WHEN work.due IS NULL OR work.due > excluded.due THEN excluded.due ELSE work.due END",
)
.locks(Rank::Wakes);

const NEXT_DUE: Sql = Sql::new("SELECT min(due) FROM work WHERE worker IS NULL AND class = $1");
const COUNT_DUE: Sql = Sql::new("SELECT count(*) FROM work WHERE class IN (0, 1) AND due <= $1");
const FIND: Sql =
    Sql::new("SELECT kind, subject, due, gen, worker, boot, deaths FROM work WHERE kind = $1 AND subject = $2");
const OVERDUE: Sql = Sql::new(
    "SELECT kind, subject, due, gen, worker, boot, deaths FROM work WHERE class IN (0, 1) AND due < $1
      ORDER BY due LIMIT $2",
);
const SWEEP: Sql = Sql::new(
    "DELETE FROM work
      WHERE due IS NULL AND worker IS NULL AND (kind, subject) IN (
            SELECT kind, subject FROM work AS resting
             WHERE due IS NULL AND worker IS NULL AND (
                   (kind = 'run' AND EXISTS (SELECT 1 FROM runs WHERE runs.id = resting.subject AND runs.open = 0))
                OR (kind IN ('job', 'gather') AND EXISTS (SELECT 1 FROM jobs WHERE jobs.id = resting.subject AND jobs.open = 0))
                OR (kind = 'agent' AND EXISTS (
                    SELECT 1 FROM agents WHERE agents.id = resting.subject
                                           AND agents.state NOT IN ('pending', 'running', 'paused')))
                OR (kind = 'workflow' AND EXISTS (SELECT 1 FROM workflows WHERE workflows.id = resting.subject AND workflows.open = 0))
                OR (kind = 'manifest' AND EXISTS (SELECT 1 FROM manifests WHERE manifests.id = resting.subject AND manifests.status <> 'DRAFT'))
                OR (kind IN ('execution', 'invocation') AND EXISTS (SELECT 1 FROM executions WHERE executions.id = resting.subject AND executions.open = 0))
                OR (kind IN ('instance', 'link') AND EXISTS (SELECT 1 FROM instances WHERE instances.id = resting.subject AND instances.open = 0))
                OR (kind = 'allocation' AND EXISTS (SELECT 1 FROM allocations WHERE allocations.id = resting.subject AND allocations.kept = 0)))
             LIMIT $1)",
);
const FORGET: Sql = Sql::new("DELETE FROM work WHERE kind = $1 AND subject = $2");

#[test]
fn kinds_are_ordered_by_name() {
    assert!(WorkKind::ALL.is_sorted_by_key(|kind| kind.as_str()) && WorkKind::ALL.is_sorted());
}
