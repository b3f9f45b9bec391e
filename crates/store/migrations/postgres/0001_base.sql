-- What every noun stands on: ids, orgs, ledger, events, work items, workers, idempotency keys, tokens, secrets.
-- Columns are BIGINT, TEXT and BYTEA only.

CREATE TABLE ids (
    id   BIGINT NOT NULL PRIMARY KEY,
    next BIGINT NOT NULL
);
INSERT INTO ids (id, next) VALUES (1, 1);

CREATE TABLE orgs (
    id          BIGINT NOT NULL PRIMARY KEY,
    name        TEXT   NOT NULL UNIQUE,
    available   BIGINT NOT NULL CHECK (available >= 0),
    reserved    BIGINT NOT NULL CHECK (reserved >= 0),
    ledger_seq  BIGINT NOT NULL,
    ledger_hash BYTEA,
    created_at  BIGINT NOT NULL
);

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
CREATE INDEX ledger_of_run ON ledger (org_id, run_id, seq) WHERE run_id IS NOT NULL;
CREATE FUNCTION ledger_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a ledger row is never changed or deleted';
END $$;
CREATE TRIGGER ledger_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_is_append_only();

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

CREATE TABLE workers (
    id      BIGINT NOT NULL PRIMARY KEY,
    name    TEXT   NOT NULL UNIQUE,
    boot    BIGINT NOT NULL,
    beat_at BIGINT NOT NULL
);

CREATE TABLE work (
    kind         TEXT   NOT NULL,
    subject      BIGINT NOT NULL,
    gen          BIGINT NOT NULL,
    due          BIGINT,
    fence        BIGINT NOT NULL DEFAULT 0,
    worker       BIGINT,
    boot         BIGINT,
    alone        BIGINT NOT NULL DEFAULT 0,
    deaths       BIGINT NOT NULL DEFAULT 0,
    deaths_alone BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, subject)
);
CREATE INDEX work_due  ON work (due) WHERE due IS NOT NULL;
CREATE INDEX work_free ON work (due) WHERE worker IS NULL;
CREATE INDEX work_held ON work (worker, boot) WHERE worker IS NOT NULL;

CREATE TABLE monitor (
    id      BIGINT NOT NULL PRIMARY KEY,
    beat_at BIGINT NOT NULL
);
INSERT INTO monitor (id, beat_at) VALUES (1, 0);

CREATE TABLE outages (
    from_at BIGINT NOT NULL PRIMARY KEY,
    to_at   BIGINT NOT NULL
);
CREATE INDEX outages_by_end ON outages (to_at);

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
CREATE INDEX idempotency_by_age ON idempotency (at);

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
CREATE INDEX tokens_of_org ON tokens (org_id, id);

CREATE TABLE secrets (
    org_id     BIGINT NOT NULL,
    name       TEXT   COLLATE "C" NOT NULL, -- in the order of bytes, as on SQLite
    sealed     BYTEA  NOT NULL,
    version    BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (org_id, name)
);
