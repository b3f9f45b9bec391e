-- The schema of the main database.
--
-- Types are BIGINT, TEXT and BYTEA only. Times are milliseconds since 1970, credits are whole micro-credits, flags are 0 or 1.
-- A table of an entity has the columns that some query searches or orders by, and `doc`: the whole entity as JSON. One
-- function writes both (docs/decisions/rows-are-columns-and-a-document.md). `version` rises with every change of a row and
-- is compared by the UPDATE, so that a change based on an old read fails.
-- Above each index: the query that it serves.

-- Ids ----------------------------------------------------------------------------------------------------------------

-- One row. A process takes a block of ids by raising `next`; an id is never given out twice.
CREATE TABLE ids (
    id   BIGINT NOT NULL PRIMARY KEY,
    next BIGINT NOT NULL
);
INSERT INTO ids (id, next) VALUES (1, 1);

-- Orgs and credits ---------------------------------------------------------------------------------------------------

-- An org, its balance, and the head of its ledger: number and hash of the last row.
CREATE TABLE orgs (
    id          BIGINT NOT NULL PRIMARY KEY,
    name        TEXT   NOT NULL UNIQUE,
    available   BIGINT NOT NULL CHECK (available >= 0),
    reserved    BIGINT NOT NULL CHECK (reserved >= 0),
    ledger_seq  BIGINT NOT NULL,
    ledger_hash BYTEA,
    created_at  BIGINT NOT NULL
);

-- Every movement of credits. Append-only: `seq` has no gaps within an org, `hash` covers the row and the hash of the row
-- before it. A movement has a key that is unique in its org and kind, so that it is made once.
CREATE TABLE ledger (
    org_id         BIGINT NOT NULL,
    seq            BIGINT NOT NULL,
    at             BIGINT NOT NULL,
    kind           TEXT   NOT NULL CHECK (kind IN ('topup', 'reserve', 'charge', 'refund', 'adjust')),
    amount         BIGINT NOT NULL CHECK (amount > 0 OR (kind = 'adjust' AND amount <> 0)),
    run_id         BIGINT,
    attempt        BIGINT,
    key            TEXT   NOT NULL,
    memo           TEXT   NOT NULL,
    from_available BIGINT NOT NULL,
    prev_hash      BYTEA  NOT NULL,
    hash           BYTEA  NOT NULL,
    PRIMARY KEY (org_id, seq),
    UNIQUE (org_id, key, kind)
);
-- The movements of one run, in order.
CREATE INDEX ledger_of_run ON ledger (org_id, run_id, seq) WHERE run_id IS NOT NULL;
CREATE FUNCTION ledger_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a ledger row is never changed or deleted';
END $$;
CREATE TRIGGER ledger_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_is_append_only();

-- What was used: sums of tokens, turns, machine time and charges. Each charge of the ledger is added to one row, in its own transaction.
-- `run_id` 0: holds and idle machines. `subject`: a step of the plan or of a program, with the turns below it; of idle machines, the machine;
-- 0: the machine of an agent, and what belongs to the run as a whole. `hour` is when the hour of the charge began.
CREATE TABLE usage (
    org_id        BIGINT NOT NULL,
    run_id        BIGINT NOT NULL,
    subject       BIGINT NOT NULL,
    agent         TEXT   NOT NULL,
    model         TEXT   NOT NULL,
    provider      TEXT   NOT NULL,
    hour          BIGINT NOT NULL,
    turns         BIGINT NOT NULL,
    calls         BIGINT NOT NULL,
    estimated     BIGINT NOT NULL,
    input_tokens  BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    machine_ms    BIGINT NOT NULL,
    charged       BIGINT NOT NULL,
    -- Also: sums of a run, by agent, by model and by provider; a page of its steps.
    PRIMARY KEY (org_id, run_id, subject, agent, model, provider, hour)
);
-- Sums of an org within a span.
CREATE INDEX usage_by_hour ON usage (org_id, hour);

-- Access -------------------------------------------------------------------------------------------------------------

-- API tokens. Only the hash of a token's text is stored.
CREATE TABLE tokens (
    id         BIGINT NOT NULL PRIMARY KEY,
    org_id     BIGINT NOT NULL,
    name       TEXT   NOT NULL,
    hash       BYTEA  NOT NULL UNIQUE,
    scopes     TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT
);
-- A page of an org's tokens, oldest first.
CREATE INDEX tokens_of_org ON tokens (org_id, id);

-- Sessions of the web pages. Only the hash of a cookie is stored; what a session may do and whether it is still good is its token's.
CREATE TABLE sessions (
    hash       BYTEA  NOT NULL PRIMARY KEY,
    token_id   BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
-- Sessions that are over, to delete them.
CREATE INDEX sessions_by_end ON sessions (expires_at);

-- Secrets of an org. `sealed` is encrypted with a key that is not in the database.
CREATE TABLE secrets (
    org_id     BIGINT NOT NULL,
    name       TEXT   COLLATE "C" NOT NULL, -- in the order of bytes, as on SQLite
    sealed     BYTEA  NOT NULL,
    version    BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (org_id, name)
);

-- Endpoints that tools of an org were told to leave alone for a while: nothing of the org is sent there before `not_before`.
CREATE TABLE endpoints (
    org_id     BIGINT NOT NULL,
    endpoint   TEXT   NOT NULL,
    not_before BIGINT NOT NULL,
    noted_at   BIGINT NOT NULL, -- when that was last counted as a failure
    PRIMARY KEY (org_id, endpoint)
);
-- Those that are forgotten.
CREATE INDEX endpoints_by_time ON endpoints (not_before);

-- Idempotency keys of POST requests: the hash of the request, and the response once there is one.
CREATE TABLE idempotency (
    org_id BIGINT NOT NULL,
    route  TEXT   NOT NULL,
    key    TEXT   NOT NULL,
    hash   BYTEA  NOT NULL,
    status BIGINT,
    body   BYTEA,
    at     BIGINT NOT NULL,
    PRIMARY KEY (org_id, route, key)
);
-- The sweep deletes the oldest keys first.
CREATE INDEX idempotency_by_age ON idempotency (at);

-- Runs and their hierarchy -------------------------------------------------------------------------------------------

CREATE TABLE runs (
    id         BIGINT NOT NULL PRIMARY KEY,
    org_id     BIGINT NOT NULL,
    name       TEXT   NOT NULL,
    status     TEXT   NOT NULL,
    attempt    BIGINT NOT NULL,
    open       BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    deleted_at BIGINT,
    last_at    BIGINT NOT NULL,
    version    BIGINT NOT NULL,
    doc        TEXT   NOT NULL
);
-- A run by its name: the open one, else the newest.
CREATE INDEX runs_by_name ON runs (org_id, name, id) WHERE deleted_at IS NULL;
-- No two open runs of an org have the same name.
CREATE UNIQUE INDEX runs_open_name ON runs (org_id, name) WHERE open = 1;
-- A page of runs, newest first. By time and not by id: each process takes ids from a block of its own.
CREATE INDEX runs_newest ON runs (org_id, created_at, id) WHERE deleted_at IS NULL;
-- The same of runs with one status, however few of an org's runs have it.
CREATE INDEX runs_newest_of ON runs (org_id, status, created_at, id) WHERE deleted_at IS NULL;
-- The same of open runs; and the count of open runs.
CREATE INDEX runs_newest_open ON runs (org_id, created_at, id) WHERE open = 1;

-- What a run works with (command, environment, files, artifacts), as JSON. Written once.
CREATE TABLE run_contents (
    run_id BIGINT NOT NULL PRIMARY KEY,
    doc    TEXT   NOT NULL,
    -- Its name and the beginning of its command in small letters: what a search looks through.
    found_by TEXT NOT NULL
);

-- An attempt of a run and its money: what was reserved for it is charged or refunded when it ends.
CREATE TABLE attempts (
    run_id      BIGINT NOT NULL,
    number      BIGINT NOT NULL,
    status      TEXT   NOT NULL,
    reserved    BIGINT NOT NULL CHECK (reserved >= 0),
    charged     BIGINT NOT NULL CHECK (charged >= 0),
    refunded    BIGINT NOT NULL CHECK (refunded >= 0),
    uncollected BIGINT NOT NULL CHECK (uncollected >= 0),
    opened_at   BIGINT NOT NULL,
    ended_at    BIGINT,
    -- Counters of its agents and of what is below them, as JSON.
    tree        TEXT   NOT NULL,
    PRIMARY KEY (run_id, number),
    CHECK (charged + refunded <= reserved),
    CHECK (status = 'open' OR charged + refunded = reserved)
);

-- The plan of one agent, written once. A new plan version has new rows.
CREATE TABLE plans (
    run_id   BIGINT NOT NULL,
    version  BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    doc      TEXT   NOT NULL,
    PRIMARY KEY (run_id, version, sequence)
);

-- `state` of agents, tasks and steps is how their parent counts them; `blocked` is a pending task that waits for another, `replaced` a
-- row in whose place a retry has put a new one. `ending` is 1 for one that is on the way to its end, `cut` for one that has open
-- children which a commit had no room to cancel.
CREATE TABLE agents (
    id       BIGINT NOT NULL PRIMARY KEY,
    run_id   BIGINT NOT NULL,
    attempt  BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    state    TEXT   NOT NULL,
    due      BIGINT,
    ending   BIGINT NOT NULL,
    cut      BIGINT NOT NULL,
    doc      TEXT   NOT NULL
);
-- Those of an attempt in a state, in order; and all of an attempt.
-- Pages of agents.
CREATE INDEX agents_made ON agents (run_id, attempt, id);
CREATE INDEX agents_by_state ON agents (run_id, attempt, state, sequence);
CREATE INDEX agents_cut ON agents (run_id, attempt) WHERE cut = 1;

CREATE TABLE tasks (
    id       BIGINT NOT NULL PRIMARY KEY,
    run_id   BIGINT NOT NULL,
    attempt  BIGINT NOT NULL,
    agent_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    state    TEXT   NOT NULL,
    due      BIGINT,
    ending   BIGINT NOT NULL,
    cut      BIGINT NOT NULL,
    doc      TEXT   NOT NULL
);
-- The tasks of an attempt.
CREATE INDEX tasks_of_run ON tasks (run_id, attempt, id);
-- Those of an agent in a state, in order.
CREATE INDEX tasks_by_state ON tasks (agent_id, state, sequence);
CREATE INDEX tasks_cut ON tasks (agent_id) WHERE cut = 1;

-- A child of another step has `parent_id`, and `path`: its name and what tells children of one name apart.
CREATE TABLE steps (
    id         BIGINT NOT NULL PRIMARY KEY,
    run_id     BIGINT NOT NULL,
    attempt    BIGINT NOT NULL,
    task_id    BIGINT NOT NULL,
    sequence   BIGINT NOT NULL,
    state      TEXT   NOT NULL,
    due        BIGINT,
    parent_id  BIGINT,
    path       TEXT,
    offer_org  BIGINT,
    offer_tool TEXT,
    doc        TEXT   NOT NULL
);
-- The steps of an attempt.
CREATE INDEX steps_of_run ON steps (run_id, attempt, id);
-- Those of a task in a state, in order.
CREATE INDEX steps_by_state ON steps (task_id, state, sequence) WHERE parent_id IS NULL;
-- Open children of a step, all or by path; all children of a step.
CREATE INDEX steps_of_parent ON steps (parent_id, state, path) WHERE parent_id IS NOT NULL;
-- Steps that an org's programs may take, by the name of their tool; the oldest first.
CREATE INDEX steps_offered ON steps (offer_org, offer_tool, id) WHERE offer_org IS NOT NULL;

-- What a step was called with (`input`) and what it answered (`output`), as JSON. Each is written once.
CREATE TABLE step_data (
    step_id BIGINT NOT NULL,
    kind    TEXT   NOT NULL,
    body    TEXT   NOT NULL,
    PRIMARY KEY (step_id, kind)
);

-- Tries of a step before its present one, which its own row describes. Only ever added to.
CREATE TABLE tries (
    step_id BIGINT NOT NULL,
    number  BIGINT NOT NULL,
    doc     TEXT   NOT NULL,
    PRIMARY KEY (step_id, number)
);

-- The journal of a run: for each identity of a step (its names, and a generation) whether it was begun or has finished, in
-- whichever attempt, with which key, and the row that has its output.
CREATE TABLE journal (
    run_id   BIGINT NOT NULL,
    identity TEXT   NOT NULL,
    key      TEXT   NOT NULL,
    state    TEXT   NOT NULL,
    step_id  BIGINT NOT NULL,
    content  TEXT, -- the hash of tool and input, of a step that is not idempotent
    PRIMARY KEY (run_id, identity)
);
-- For a step of a new plan: the first step of another name that was begun with the same tool and input.
CREATE INDEX journal_content ON journal (run_id, content, step_id) WHERE content IS NOT NULL;

-- What people are asked: approvals of a step's input, and tickets about what becomes of a step.
CREATE TABLE questions (
    id      BIGINT NOT NULL PRIMARY KEY,
    org_id  BIGINT NOT NULL,
    run_id  BIGINT NOT NULL,
    step_id BIGINT NOT NULL,
    kind    TEXT   NOT NULL,
    key     TEXT   NOT NULL,
    open    BIGINT NOT NULL,
    expires BIGINT,
    doc     TEXT   NOT NULL
);
-- Open ones of an org, newest first; all of them in pages.
CREATE INDEX questions_open_of_org ON questions (org_id, kind, id) WHERE open = 1;
CREATE INDEX questions_of_org ON questions (org_id, kind, id);
-- Open ones of a run; all of a run; the last of a step; approvals of a step's exact input.
CREATE INDEX questions_open_of_run ON questions (run_id, kind, id) WHERE open = 1;
CREATE INDEX questions_of_run ON questions (run_id, kind, id);
CREATE INDEX questions_of_key ON questions (run_id, key, id);
CREATE INDEX questions_of_step ON questions (step_id, kind, id);

-- What a question is about and what was said to it, as JSON: the step's `input` as it was asked about, the `edited` one that a person put
-- in its place, the `answer`. Each is written once.
CREATE TABLE question_data (
    question_id BIGINT NOT NULL,
    kind        TEXT   NOT NULL,
    body        TEXT   NOT NULL,
    PRIMARY KEY (question_id, kind)
);

-- What people say to agents that talk with a model. `dialogue` and `turn`: the step, by its name in the journal, and its turn that the
-- message is part of; none while it waits for the agent's next turn.
CREATE TABLE messages (
    id       BIGINT NOT NULL PRIMARY KEY,
    org_id   BIGINT NOT NULL,
    run_id   BIGINT NOT NULL,
    agent    TEXT   NOT NULL,
    at       BIGINT NOT NULL,
    body     TEXT   NOT NULL,
    dialogue TEXT,
    turn     TEXT
);
-- How many a run has had.
CREATE INDEX messages_of_run ON messages (run_id);
-- Those that an agent's next turn takes.
CREATE INDEX messages_waiting ON messages (run_id, agent, id) WHERE turn IS NULL;
-- Those that the turns of a dialogue have taken.
CREATE INDEX messages_taken ON messages (run_id, dialogue, id) WHERE turn IS NOT NULL;

-- Events of a run, or of an org (`run_id` 0). `event_heads` has the last number given out; numbers have no gaps.
CREATE TABLE event_heads (
    org_id BIGINT NOT NULL,
    run_id BIGINT NOT NULL,
    last   BIGINT NOT NULL,
    PRIMARY KEY (org_id, run_id)
);

CREATE TABLE events (
    org_id BIGINT NOT NULL,
    run_id BIGINT NOT NULL,
    seq    BIGINT NOT NULL,
    at     BIGINT NOT NULL,
    kind   TEXT   NOT NULL,
    body   TEXT   NOT NULL,
    PRIMARY KEY (org_id, run_id, seq)
);

-- Placement: jobs, pools, machines -----------------------------------------------------------------------------------

-- What an agent runs on a machine. A job that waits for a slot of its pool has `queue_seq`, its place by time of submission,
-- and `turn`, its round: the waiting list goes round the orgs, so an org's jobs have successive turns.
CREATE TABLE jobs (
    id            BIGINT NOT NULL PRIMARY KEY,
    org_id        BIGINT NOT NULL,
    run_id        BIGINT NOT NULL,
    attempt       BIGINT NOT NULL,
    agent_id      BIGINT NOT NULL,
    status        TEXT   NOT NULL,
    open          BIGINT NOT NULL,
    pool_id       BIGINT NOT NULL,
    priority      BIGINT NOT NULL,
    queue_seq     BIGINT,
    turn          BIGINT,
    instance_id   BIGINT,
    allocation_id BIGINT,
    epoch         BIGINT NOT NULL,
    -- What it can still be asked: 2 to stop, 1 only to stop at once, 0 nothing; and whether it stands still, while that can change.
    can_stop      BIGINT NOT NULL,
    freeze_state  TEXT,
    version       BIGINT NOT NULL,
    doc           TEXT   NOT NULL
);
-- The jobs of a run; the open ones of an attempt that are to be stopped, held, released or charged.
CREATE INDEX jobs_of_run ON jobs (run_id, attempt, id);
-- The waiting list of a pool: its head, a page of it, its length, how many come before a job.
CREATE INDEX jobs_waiting ON jobs (pool_id, priority, turn, queue_seq) WHERE queue_seq IS NOT NULL;
-- The last turn of a pool, whether its job still waits or not.
CREATE INDEX jobs_turns ON jobs (pool_id, priority, turn) WHERE turn IS NOT NULL;
-- The last turn of an org in a pool.
CREATE INDEX jobs_turns_of_org ON jobs (pool_id, priority, org_id, turn) WHERE turn IS NOT NULL;
-- An agent has at most one open job.
CREATE UNIQUE INDEX jobs_one_per_agent ON jobs (agent_id) WHERE open = 1;
-- A machine has at most one open job; and which job that is.
CREATE UNIQUE INDEX jobs_one_per_instance ON jobs (instance_id) WHERE open = 1 AND instance_id IS NOT NULL;

-- Where machines come from: a provider in a region. Its row is the lock of placement; `next_seq` is the next `queue_seq`.
CREATE TABLE pools (
    id       BIGINT NOT NULL PRIMARY KEY,
    provider TEXT   NOT NULL,
    region   TEXT   NOT NULL,
    next_seq BIGINT NOT NULL,
    UNIQUE (provider, region)
);

-- A machine. `desired_version` rises with every change of what its runner is told, `observed_version` is what it has confirmed.
CREATE TABLE instances (
    id               BIGINT NOT NULL PRIMARY KEY,
    org_id           BIGINT NOT NULL,
    created_at       BIGINT NOT NULL,
    pool_id          BIGINT NOT NULL,
    name             TEXT   NOT NULL UNIQUE,
    status           TEXT   NOT NULL,
    open             BIGINT NOT NULL,
    desired_version  BIGINT NOT NULL,
    observed_version BIGINT NOT NULL,
    last_seen_at     BIGINT,
    version          BIGINT NOT NULL,
    doc              TEXT   NOT NULL
);
-- A page of an org's machines, newest first.
CREATE INDEX instances_of_org ON instances (org_id, created_at, id);
-- The open machines of a pool, with or without a free slot.
CREATE INDEX instances_open ON instances (pool_id, id) WHERE open = 1;

-- A slot of a machine, and the job that has it. The warm pool is the query for AVAILABLE slots of ready machines.
CREATE TABLE allocations (
    id          BIGINT NOT NULL PRIMARY KEY,
    org_id      BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    instance_id BIGINT NOT NULL,
    job_id      BIGINT,
    status      TEXT   NOT NULL,
    kept        BIGINT NOT NULL,
    hold_until  BIGINT,
    version     BIGINT NOT NULL,
    doc         TEXT   NOT NULL
);
-- A page of an org's slots, newest first.
CREATE INDEX allocations_of_org ON allocations (org_id, created_at, id);
-- All slots that a machine has had.
CREATE INDEX allocations_of_instance ON allocations (instance_id, id);
-- The slots of a job.
CREATE INDEX allocations_of_job ON allocations (job_id) WHERE job_id IS NOT NULL;
-- A machine has at most one free slot; and the free slots of a pool's machines.
CREATE UNIQUE INDEX allocations_available ON allocations (instance_id) WHERE status = 'AVAILABLE';
-- A machine has at most one slot in use.
CREATE UNIQUE INDEX allocations_live ON allocations (instance_id) WHERE status IN ('CLAIMED', 'ACTIVE');
-- Slots whose folder is still on the machine: of one machine, and their count.
CREATE INDEX allocations_kept ON allocations (instance_id, id) WHERE kept = 1;
-- Folders of an org that are held, newest first.
CREATE INDEX allocations_held ON allocations (org_id, created_at, id) WHERE kept = 1 AND hold_until IS NOT NULL;

-- Workflows and what they own ----------------------------------------------------------------------------------------

CREATE TABLE workflows (
    id          BIGINT NOT NULL PRIMARY KEY,
    org_id      BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    intent      TEXT   NOT NULL,
    status      TEXT   NOT NULL,
    open        BIGINT NOT NULL,
    job_id      BIGINT,
    instance_id BIGINT,
    manifest_id BIGINT NOT NULL,
    version     BIGINT NOT NULL,
    doc         TEXT   NOT NULL
);
-- A page of an org's workflows, newest first.
CREATE INDEX workflows_of_org ON workflows (org_id, created_at, id);
-- The last workflows of a machine.
CREATE INDEX workflows_of_instance ON workflows (instance_id, id) WHERE instance_id IS NOT NULL;

-- The list of resources that a workflow has made, sealed when it ends.
CREATE TABLE manifests (
    id           BIGINT NOT NULL PRIMARY KEY,
    org_id       BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    workflow_id  BIGINT NOT NULL,
    status       TEXT   NOT NULL,
    retain_until BIGINT,
    doc          TEXT   NOT NULL
);
-- A page of an org's manifests, newest first.
CREATE INDEX manifests_of_org ON manifests (org_id, created_at, id);

-- The entries of manifests. A resource has exactly one owner; claiming it moves the row to another manifest.
CREATE TABLE resources (
    kind        TEXT   NOT NULL,
    resource_id BIGINT NOT NULL,
    manifest_id BIGINT NOT NULL,
    PRIMARY KEY (kind, resource_id)
);
-- The resources of a manifest.
CREATE INDEX resources_of_manifest ON resources (manifest_id, kind, resource_id);

-- Workdirs kept as trees. `tree`: what the sweep of contents must leave.
CREATE TABLE snapshots (
    id         BIGINT NOT NULL PRIMARY KEY,
    org_id     BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    status     TEXT   NOT NULL,
    tree       TEXT,
    doc        TEXT   NOT NULL
);
-- A page of an org's snapshots, newest first.
CREATE INDEX snapshots_of_org ON snapshots (org_id, created_at, id) WHERE status <> 'deleted';
-- Whether a snapshot needs a tree.
CREATE INDEX snapshots_of_tree ON snapshots (org_id, tree) WHERE tree IS NOT NULL;

-- What providers list and no row knows -------------------------------------------------------------------------------

-- Orphans: rows of what the last scans found. They belong to the installation, not to an org. `doc` is what the provider said;
-- `seen_at`: the start of the scan that saw it last. `ending_*`: a person has asked for its end.
CREATE TABLE orphans (
    id            BIGINT NOT NULL PRIMARY KEY,
    provider      TEXT   NOT NULL,
    provider_id   TEXT   NOT NULL,
    pool_id       BIGINT NOT NULL,
    control_id    TEXT   NOT NULL, -- empty if the name does not tell
    price_micro   BIGINT NOT NULL,
    first_seen_at BIGINT NOT NULL,
    seen_at       BIGINT NOT NULL,
    notified_at   BIGINT,
    ending_at     BIGINT,
    ending_org    BIGINT,
    ending_by     TEXT,
    ending_error  TEXT,
    doc           TEXT   NOT NULL,
    UNIQUE (provider, provider_id)
);
-- What a scan of a pool did not see again is removed.
CREATE INDEX orphans_of_pool ON orphans (pool_id, seen_at);
-- Orphans by what their names say, for the warning before a run and for notices.
CREATE INDEX orphans_of_control ON orphans (control_id, id);
-- Orphans by their id at the provider, whichever provider it is.
CREATE INDEX orphans_by_handle ON orphans (provider_id, id);

-- Orphans that somebody has looked into and keeps.
CREATE TABLE orphan_whitelist (
    provider        TEXT   NOT NULL,
    provider_id     TEXT   NOT NULL,
    kind            TEXT   NOT NULL,
    reason          TEXT   NOT NULL,
    acknowledged_by TEXT   NOT NULL,
    acknowledged_at BIGINT NOT NULL,
    expires_at      BIGINT,
    notes           TEXT,
    PRIMARY KEY (provider, provider_id)
);
-- Entries whose time is up.
CREATE INDEX orphan_whitelist_to_expire ON orphan_whitelist (expires_at) WHERE expires_at IS NOT NULL;

-- Providers that a person has added, and copies of those in the settings.
CREATE TABLE providers (
    name TEXT NOT NULL PRIMARY KEY,
    doc  TEXT NOT NULL
);

-- Hosts of providers that have several: what they have, and whether they could be used when they were asked last.
CREATE TABLE hosts (
    provider TEXT NOT NULL,
    name     TEXT NOT NULL,
    doc      TEXT NOT NULL,
    PRIMARY KEY (provider, name)
);

-- The last scan of each pool (provider and region), and whether it could be listed.
CREATE TABLE scans (
    pool_id BIGINT NOT NULL PRIMARY KEY,
    doc     TEXT   NOT NULL
);

-- Runners with a good token of which no row knows, or whose jobs none does, as they have introduced themselves: after the loss of a
-- database. They belong to the installation.
CREATE TABLE unlisted (
    name    TEXT   NOT NULL PRIMARY KEY,
    seen_at BIGINT NOT NULL,
    doc     TEXT   NOT NULL
);
-- Those that have not been heard of for long are removed.
CREATE INDEX unlisted_by_time ON unlisted (seen_at);

-- Work items and the processes that hold them ------------------------------------------------------------------------

-- A worker process and its lease. `boot` rises each time that a process starts under this name.
CREATE TABLE workers (
    id      BIGINT NOT NULL PRIMARY KEY,
    name    TEXT   NOT NULL UNIQUE,
    boot    BIGINT NOT NULL,
    beat_at BIGINT NOT NULL,
    started_at BIGINT NOT NULL DEFAULT 0
);

-- One row for each (kind, subject) that has something to do. A wake raises `gen` and may bring `due` nearer; a claim raises
-- `fence` and sets `worker`, `boot` and `leased_at`. `deaths` counts the holders that died soon after their claim of it, `deaths_alone`
-- those that held nothing else.
CREATE TABLE work (
    kind         TEXT   NOT NULL,
    subject      BIGINT NOT NULL,
    class        BIGINT NOT NULL,
    gen          BIGINT NOT NULL,
    due          BIGINT,
    fence        BIGINT NOT NULL DEFAULT 0,
    worker       BIGINT,
    boot         BIGINT,
    leased_at    BIGINT NOT NULL DEFAULT 0,
    alone        BIGINT NOT NULL DEFAULT 0,
    deaths       BIGINT NOT NULL DEFAULT 0,
    deaths_alone BIGINT NOT NULL DEFAULT 0,
    org_id       BIGINT, -- of an act, since it was first claimed
    PRIMARY KEY (kind, subject)
);
-- Items of a class (0: control, 1: act, 2: parked act) that are due, whether held or not: the claim, the count, and what is overdue.
CREATE INDEX work_due ON work (class, due) WHERE due IS NOT NULL;
-- When the next item that no worker holds is due.
CREATE INDEX work_free ON work (class, due) WHERE worker IS NULL;
-- How many items a worker holds; and the release of all of them.
CREATE INDEX work_held ON work (worker, boot, class) WHERE worker IS NOT NULL;
-- How many acts of an org are held.
CREATE INDEX work_held_of_org ON work (org_id) WHERE class = 1 AND worker IS NOT NULL AND org_id IS NOT NULL;
-- Acts that wait until fewer of their org are held (class 2): which orgs have some, and the oldest of each.
CREATE INDEX work_parked ON work (org_id, due) WHERE class = 2;
-- Items without a due time: the sweep deletes those whose subject has ended.
CREATE INDEX work_resting ON work (kind, subject) WHERE due IS NULL AND worker IS NULL;

-- One row: when any control plane last wrote that it is alive. A gap between two beats is an outage.
CREATE TABLE monitor (
    id      BIGINT NOT NULL PRIMARY KEY,
    beat_at BIGINT NOT NULL
);
INSERT INTO monitor (id, beat_at) VALUES (1, 0);

-- Times when no control plane was alive. Deadlines do not count them.
CREATE TABLE outages (
    from_at BIGINT NOT NULL PRIMARY KEY,
    to_at   BIGINT NOT NULL
);
-- Outages that ended after a given time.
CREATE INDEX outages_by_end ON outages (to_at);

-- Files: what runs are sent with, and what they leave ----------------------------------------------------------------

-- Blobs of an org by their hash: files, and documents of folders (trees). The row is written before the blob and deleted
-- after it. `kept`: the blob is stored. `tree`: it is a folder's document, and everything that it names is stored.
-- `going`: 0 in use, 1 the blob is being deleted, 2 the blob is deleted and the row follows.
CREATE TABLE contents (
    org_id  BIGINT NOT NULL,
    hash    TEXT   NOT NULL,
    used_at BIGINT NOT NULL,
    going   BIGINT NOT NULL DEFAULT 0,
    kept    BIGINT NOT NULL DEFAULT 0,
    tree    BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (org_id, hash)
);
-- The sweep: what has not been used for long, what is being deleted, and what is deleted.
CREATE INDEX contents_by_use ON contents (going, used_at);

-- Which contents a run was submitted with. A content of an open run is not deleted.
CREATE TABLE content_uses (
    run_id BIGINT NOT NULL,
    org_id BIGINT NOT NULL,
    hash   TEXT   NOT NULL,
    PRIMARY KEY (run_id, org_id, hash)
);
-- The runs that use a content.
CREATE INDEX content_users ON content_uses (org_id, hash, run_id);

-- Which contents a stored folder's document names. A content that is named is not deleted, so a tree is stored as a whole or
-- not at all.
CREATE TABLE content_edges (
    org_id BIGINT NOT NULL,
    parent TEXT   NOT NULL,
    child  TEXT   NOT NULL,
    PRIMARY KEY (org_id, parent, child)
);
-- The documents that name a content.
CREATE INDEX content_parents ON content_edges (org_id, child);

-- What a run leaves: a file, a folder or a link. The row is written before the upload and remains after its bytes expire.
-- `lease_until`: a download is under way and delays deletion.
CREATE TABLE artifacts (
    id          BIGINT NOT NULL PRIMARY KEY,
    org_id      BIGINT NOT NULL,
    run_id      BIGINT NOT NULL,
    attempt     BIGINT NOT NULL,
    path        TEXT   NOT NULL,
    kind        TEXT   NOT NULL DEFAULT 'file',
    mode        BIGINT NOT NULL DEFAULT 420,
    target      TEXT,
    state       TEXT   NOT NULL CHECK (state IN ('uploading', 'final', 'failed', 'deleted')),
    size        BIGINT NOT NULL,
    hash        TEXT,
    created_at  BIGINT NOT NULL,
    expires_at  BIGINT,
    lease_until BIGINT,
    deleted_at  BIGINT,
    in_contents BIGINT NOT NULL DEFAULT 0, -- its bytes are a content of the org, named by `hash`
    UNIQUE (run_id, attempt, path)
);
-- A page of a run's artifacts; and setting their expiry when the run ends.
CREATE INDEX artifacts_of_run ON artifacts (run_id, id);
-- The sweep: artifacts past their expiry.
CREATE INDEX artifacts_to_expire ON artifacts (expires_at) WHERE deleted_at IS NULL AND expires_at IS NOT NULL;
-- Whether an artifact shares a content, which the sweep of contents then leaves.
CREATE INDEX artifacts_by_content ON artifacts (org_id, hash) WHERE in_contents = 1 AND deleted_at IS NULL;
-- How many uploads of a run are under way; and marking them as failed.
CREATE INDEX artifacts_uploading ON artifacts (run_id) WHERE state = 'uploading';

-- The bytes of a run's artifacts, uploads under way included: an announcement checks the quota by one row.
CREATE TABLE artifact_totals (
    run_id BIGINT NOT NULL PRIMARY KEY,
    bytes  BIGINT NOT NULL
);

-- Calls --------------------------------------------------------------------------------------------------------------

-- Immutable records of an org by their id, which is the BLAKE3 hash of `bytes`. `used_at`: when it was last stored or read for a result;
-- a sweep takes nothing that was used since its mark began.
CREATE TABLE objects (
    org_id  BIGINT NOT NULL,
    id      BYTEA  NOT NULL,
    kind    BIGINT NOT NULL,
    used_at BIGINT NOT NULL,
    bytes   BYTEA  NOT NULL,
    -- Also: those whose id begins with some digits; a page of all, for a sweep.
    PRIMARY KEY (org_id, id)
);

-- Names that point to commits. The only mutable part of an org's objects; each is changed by compare-and-swap.
CREATE TABLE refs (
    org_id BIGINT NOT NULL,
    name   TEXT   COLLATE "C" NOT NULL, -- in the order of bytes, as on SQLite
    target BYTEA  NOT NULL,
    PRIMARY KEY (org_id, name)
);

-- Which exec answers a call node: a copy of the exec map of the index, in one row for each node. Rebuildable from the index commit.
CREATE TABLE pins (
    org_id   BIGINT NOT NULL,
    project  TEXT   NOT NULL,
    node     BYTEA  NOT NULL,
    exec     BYTEA  NOT NULL,
    used_at  BIGINT NOT NULL,
    id       BIGINT NOT NULL, -- rises with each pin
    PRIMARY KEY (org_id, project, node)
);
-- A page of pins, newest first.
CREATE INDEX pins_newest ON pins (org_id, project, id);
-- The pins that were not used for longest.
CREATE INDEX pins_by_use ON pins (org_id, project, used_at);

-- Execs of an org: what was executed when, by which run, and the bytes that its result takes. Rebuildable from the exec records,
-- but for `name`, the name of the run that asked first.
CREATE TABLE execs (
    org_id   BIGINT NOT NULL,
    id       BYTEA  NOT NULL,
    node     BYTEA  NOT NULL,
    function TEXT   NOT NULL,
    name     TEXT   NOT NULL,
    ok       BIGINT NOT NULL,
    run_id   BIGINT,
    ended_at BIGINT NOT NULL,
    bytes    BIGINT NOT NULL,
    PRIMARY KEY (org_id, id)
);
-- Execs of a node, newest first.
CREATE INDEX execs_of_node ON execs (org_id, node, ended_at);
-- The newest exec of a function, of one name or of any.
CREATE INDEX execs_of_name ON execs (org_id, function, name, ended_at);
CREATE INDEX execs_of_function ON execs (org_id, function, ended_at);
-- A page of an org's execs, newest first.
CREATE INDEX execs_newest ON execs (org_id, ended_at, id);
-- What a run was executed for.
CREATE INDEX execs_of_run ON execs (org_id, run_id) WHERE run_id IS NOT NULL;

-- Which contents the results of execs name. The sweep of contents leaves them.
CREATE TABLE exec_contents (
    org_id BIGINT NOT NULL,
    exec   BYTEA  NOT NULL,
    hash   TEXT   NOT NULL,
    PRIMARY KEY (org_id, exec, hash)
);
-- Whether an exec names a content.
CREATE INDEX exec_contents_by_hash ON exec_contents (org_id, hash);

-- Which contents the stored records of calls name, such as those of a head. The sweep of contents leaves them.
CREATE TABLE object_contents (
    org_id BIGINT NOT NULL,
    object BYTEA  NOT NULL,
    hash   TEXT   NOT NULL,
    PRIMARY KEY (org_id, object)
);
-- Whether a record names a content.
CREATE INDEX object_contents_by_hash ON object_contents (org_id, hash);

-- Executions of call nodes. `request` is what is executed (of a cached run its specification), as JSON.
CREATE TABLE executions (
    id       BIGINT NOT NULL PRIMARY KEY,
    org_id   BIGINT NOT NULL,
    key      TEXT   NOT NULL,
    open     BIGINT NOT NULL,
    ended_at BIGINT,
    doc      TEXT   NOT NULL,
    request  TEXT   NOT NULL
);
-- Callers of one key share one execution.
CREATE UNIQUE INDEX executions_open ON executions (org_id, key) WHERE open = 1;
-- Executions of an org, newest first.
CREATE INDEX executions_of_org ON executions (org_id, id);
-- The newest execution of a key.
CREATE INDEX executions_of_key ON executions (org_id, key, id);
-- Those that ended long ago.
CREATE INDEX executions_ended ON executions (ended_at) WHERE open = 0;

-- The last attempt of keys whose executions were deleted: adapters name their jobs by key and attempt, so that no number may come twice.
CREATE TABLE attempts_of_calls (
    org_id  BIGINT NOT NULL,
    key     TEXT   NOT NULL,
    attempt BIGINT NOT NULL,
    PRIMARY KEY (org_id, key)
);

-- Runs that wait for an execution. A row goes when its run is answered or cancelled.
CREATE TABLE callers (
    execution_id BIGINT NOT NULL,
    run_id       BIGINT NOT NULL,
    PRIMARY KEY (execution_id, run_id)
);

-- What a run's steps wait for.
CREATE INDEX callers_of_run ON callers (run_id);

-- Which Orchestrator works on an execution key. Changed by compare-and-swap on `version`.
CREATE TABLE claims (
    org_id  BIGINT NOT NULL,
    key     TEXT   NOT NULL,
    version BIGINT NOT NULL,
    doc     TEXT   NOT NULL,
    PRIMARY KEY (org_id, key)
);

-- How often the results of a function were invalidated. Part of every execution key.
CREATE TABLE epochs (
    org_id   BIGINT NOT NULL,
    function TEXT   NOT NULL,
    counter  BIGINT NOT NULL,
    PRIMARY KEY (org_id, function)
);
