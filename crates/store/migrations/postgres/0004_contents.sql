-- Contents of files that runs are sent with: the row stands before the bytes and goes after them.
CREATE TABLE contents (
    org_id  BIGINT NOT NULL,
    hash    TEXT   NOT NULL,
    used_at BIGINT NOT NULL,
    -- 0 here, 1 its bytes are being deleted, 2 they are gone and the row follows
    going   BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (org_id, hash)
);
CREATE INDEX contents_by_use ON contents (going, used_at);

CREATE TABLE content_uses (
    run_id BIGINT NOT NULL,
    org_id BIGINT NOT NULL,
    hash   TEXT   NOT NULL,
    PRIMARY KEY (run_id, org_id, hash)
);
CREATE INDEX content_users ON content_uses (org_id, hash, run_id);

-- Items that nothing will wake by itself: the sweep looks here for those whose subject has ended.
CREATE INDEX work_resting ON work (kind, subject) WHERE due IS NULL AND worker IS NULL;
