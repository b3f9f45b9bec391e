-- The lives: each row has the columns that are searched by, and `doc`, the whole entity. One function writes both.

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
CREATE INDEX runs_of_org ON runs (org_id, id) WHERE deleted_at IS NULL;
CREATE INDEX runs_by_name ON runs (org_id, name, id) WHERE deleted_at IS NULL;
CREATE INDEX runs_open ON runs (org_id, id) WHERE open = 1;
CREATE UNIQUE INDEX runs_open_name ON runs (org_id, name) WHERE open = 1;

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
    PRIMARY KEY (run_id, number),
    CHECK (charged + refunded <= reserved),
    CHECK (status = 'open' OR charged + refunded = reserved)
);

CREATE TABLE agents (
    id      BIGINT NOT NULL PRIMARY KEY,
    run_id  BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    status  TEXT   NOT NULL,
    doc     TEXT   NOT NULL
);
CREATE INDEX agents_of_run ON agents (run_id, attempt, id);

CREATE TABLE tasks (
    id       BIGINT NOT NULL PRIMARY KEY,
    run_id   BIGINT NOT NULL,
    attempt  BIGINT NOT NULL,
    agent_id BIGINT NOT NULL,
    status   TEXT   NOT NULL,
    doc      TEXT   NOT NULL
);
CREATE INDEX tasks_of_run ON tasks (run_id, attempt, id);

CREATE TABLE steps (
    id      BIGINT NOT NULL PRIMARY KEY,
    run_id  BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    task_id BIGINT NOT NULL,
    status  TEXT   NOT NULL,
    doc     TEXT   NOT NULL
);
CREATE INDEX steps_of_run ON steps (run_id, attempt, id);

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
    instance_id   BIGINT,
    allocation_id BIGINT,
    epoch         BIGINT NOT NULL,
    version       BIGINT NOT NULL,
    doc           TEXT   NOT NULL
);
CREATE INDEX jobs_of_run ON jobs (run_id, attempt, id);
CREATE INDEX jobs_waiting ON jobs (pool_id, priority, queue_seq) WHERE queue_seq IS NOT NULL;
CREATE INDEX jobs_on_instance ON jobs (instance_id) WHERE open = 1;
CREATE UNIQUE INDEX jobs_one_per_agent ON jobs (agent_id) WHERE open = 1;
CREATE UNIQUE INDEX jobs_one_per_instance ON jobs (instance_id) WHERE open = 1 AND instance_id IS NOT NULL;

CREATE TABLE pools (
    id       BIGINT NOT NULL PRIMARY KEY,
    provider TEXT   NOT NULL,
    region   TEXT   NOT NULL,
    next_seq BIGINT NOT NULL,
    UNIQUE (provider, region)
);

CREATE TABLE instances (
    id               BIGINT NOT NULL PRIMARY KEY,
    org_id           BIGINT NOT NULL,
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
CREATE INDEX instances_of_org ON instances (org_id, id);
CREATE INDEX instances_open ON instances (pool_id, id) WHERE open = 1;

CREATE TABLE allocations (
    id          BIGINT NOT NULL PRIMARY KEY,
    org_id      BIGINT NOT NULL,
    instance_id BIGINT NOT NULL,
    job_id      BIGINT,
    status      TEXT   NOT NULL,
    kept        BIGINT NOT NULL,
    hold_until  BIGINT,
    version     BIGINT NOT NULL,
    doc         TEXT   NOT NULL
);
CREATE INDEX allocations_of_org ON allocations (org_id, id);
CREATE INDEX allocations_of_instance ON allocations (instance_id, id);
CREATE INDEX allocations_of_job ON allocations (job_id) WHERE job_id IS NOT NULL;
-- The warm pool is a query over these.
CREATE UNIQUE INDEX allocations_available ON allocations (instance_id) WHERE status = 'AVAILABLE';
CREATE UNIQUE INDEX allocations_live ON allocations (instance_id) WHERE status IN ('CLAIMED', 'ACTIVE');
CREATE INDEX allocations_kept ON allocations (instance_id, id) WHERE kept = 1;

CREATE TABLE workflows (
    id          BIGINT NOT NULL PRIMARY KEY,
    org_id      BIGINT NOT NULL,
    intent      TEXT   NOT NULL,
    status      TEXT   NOT NULL,
    open        BIGINT NOT NULL,
    job_id      BIGINT,
    instance_id BIGINT,
    manifest_id BIGINT NOT NULL,
    version     BIGINT NOT NULL,
    doc         TEXT   NOT NULL
);
CREATE INDEX workflows_of_org ON workflows (org_id, id);
CREATE INDEX workflows_of_instance ON workflows (instance_id, id) WHERE instance_id IS NOT NULL;

CREATE TABLE manifests (
    id           BIGINT NOT NULL PRIMARY KEY,
    org_id       BIGINT NOT NULL,
    workflow_id  BIGINT NOT NULL,
    status       TEXT   NOT NULL,
    retain_until BIGINT,
    doc          TEXT   NOT NULL
);
CREATE INDEX manifests_of_org ON manifests (org_id, id);
CREATE INDEX manifests_to_clean ON manifests (retain_until) WHERE status = 'SEALED' AND retain_until IS NOT NULL;

-- Every resource has exactly one owner; claiming moves it.
CREATE TABLE resources (
    kind        TEXT   NOT NULL,
    resource_id BIGINT NOT NULL,
    manifest_id BIGINT NOT NULL,
    PRIMARY KEY (kind, resource_id)
);
CREATE INDEX resources_of_manifest ON resources (manifest_id, kind, resource_id);

CREATE TABLE artifacts (
    id         BIGINT NOT NULL PRIMARY KEY,
    org_id     BIGINT NOT NULL,
    run_id     BIGINT NOT NULL,
    attempt    BIGINT NOT NULL,
    path       TEXT   NOT NULL,
    state      TEXT   NOT NULL CHECK (state IN ('uploading', 'final', 'deleted')),
    size       BIGINT NOT NULL,
    hash       TEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    deleted_at BIGINT,
    UNIQUE (run_id, attempt, path)
);
CREATE INDEX artifacts_of_run ON artifacts (run_id, id);
CREATE INDEX artifacts_to_expire ON artifacts (expires_at) WHERE deleted_at IS NULL AND expires_at IS NOT NULL;
