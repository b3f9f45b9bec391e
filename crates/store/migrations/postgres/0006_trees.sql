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

-- Artifacts that are folders and links, failed uploads, and downloads that delay deletion.
ALTER TABLE artifacts DROP CONSTRAINT artifacts_state_check;
ALTER TABLE artifacts ADD CONSTRAINT artifacts_state_check CHECK (state IN ('uploading', 'final', 'failed', 'deleted'));
ALTER TABLE artifacts ADD COLUMN kind TEXT NOT NULL DEFAULT 'file';
ALTER TABLE artifacts ADD COLUMN mode BIGINT NOT NULL DEFAULT 420;
ALTER TABLE artifacts ADD COLUMN target TEXT;
ALTER TABLE artifacts ADD COLUMN lease_until BIGINT;
CREATE INDEX artifacts_uploading ON artifacts (run_id) WHERE state = 'uploading';
-- What a run's artifacts take together, those on their way included: so that an announcement need not add them up.
CREATE TABLE artifact_totals (
    run_id BIGINT NOT NULL PRIMARY KEY,
    bytes  BIGINT NOT NULL
);
INSERT INTO artifact_totals (run_id, bytes) SELECT run_id, sum(size) FROM artifacts GROUP BY run_id;
