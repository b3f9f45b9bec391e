-- File trees: a run names one hash, and a folder's document names what is in it. A content is deleted only when no
-- stored document names it, so that a tree is here as a whole or not at all.
ALTER TABLE contents ADD COLUMN kept BIGINT NOT NULL DEFAULT 0;
ALTER TABLE contents ADD COLUMN tree BIGINT NOT NULL DEFAULT 0;
UPDATE contents SET kept = 1;

CREATE TABLE content_edges (
    org_id BIGINT NOT NULL,
    parent TEXT   NOT NULL,
    child  TEXT   NOT NULL,
    PRIMARY KEY (org_id, parent, child)
);
CREATE INDEX content_parents ON content_edges (org_id, child);

-- Artifacts that are folders and links, failed uploads, and downloads that delay deletion. SQLite changes a CHECK only with
-- the whole table.
ALTER TABLE artifacts RENAME TO artifacts_before;
DROP INDEX artifacts_of_run;
DROP INDEX artifacts_to_expire;
CREATE TABLE artifacts (
    id          BIGINT NOT NULL PRIMARY KEY,
    org_id      BIGINT NOT NULL,
    run_id      BIGINT NOT NULL,
    attempt     BIGINT NOT NULL,
    path        TEXT   NOT NULL,
    state       TEXT   NOT NULL CHECK (state IN ('uploading', 'final', 'failed', 'deleted')),
    size        BIGINT NOT NULL,
    hash        TEXT,
    created_at  BIGINT NOT NULL,
    expires_at  BIGINT,
    deleted_at  BIGINT,
    kind        TEXT   NOT NULL DEFAULT 'file',
    mode        BIGINT NOT NULL DEFAULT 420,
    target      TEXT,
    lease_until BIGINT,
    UNIQUE (run_id, attempt, path)
);
INSERT INTO artifacts (id, org_id, run_id, attempt, path, state, size, hash, created_at, expires_at, deleted_at)
SELECT id, org_id, run_id, attempt, path, state, size, hash, created_at, expires_at, deleted_at FROM artifacts_before;
DROP TABLE artifacts_before;
CREATE INDEX artifacts_of_run ON artifacts (run_id, id);
CREATE INDEX artifacts_to_expire ON artifacts (expires_at) WHERE deleted_at IS NULL AND expires_at IS NOT NULL;
CREATE INDEX artifacts_uploading ON artifacts (run_id) WHERE state = 'uploading';
-- What a run's artifacts take together, those on their way included: so that an announcement need not add them up.
CREATE TABLE artifact_totals (
    run_id BIGINT NOT NULL PRIMARY KEY,
    bytes  BIGINT NOT NULL
);
INSERT INTO artifact_totals (run_id, bytes) SELECT run_id, sum(size) FROM artifacts GROUP BY run_id;
