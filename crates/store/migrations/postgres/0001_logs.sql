-- The schema of the logs. The same tables as on SQLite, in the one database.
-- Types and times are as in the main database. Above each index: the query that it serves.

-- The log of a job: one sequence of bytes. Bytes from `base` on belong to `epoch`; `next_offset` is its length, `cut_at`
-- where the quota cut it off, `lost` how many bytes were announced and never arrived.
-- `sealed`: the job has ended and no bytes follow. `gathered_org` and `gathered_at`: the rows were copied into one file.
-- `kept_from`: retention counts from here (the end of the run, as far as it was known). `deleted_at` is set before the bytes
-- are deleted, and is what readers are told. `swept`: 0 rows and file, 1 the file only, 2 neither.
CREATE TABLE log_heads (
    job_id       BIGINT NOT NULL PRIMARY KEY,
    epoch        BIGINT NOT NULL,
    base         BIGINT NOT NULL,
    next_offset  BIGINT NOT NULL,
    cut_at       BIGINT,
    sealed       BIGINT NOT NULL DEFAULT 0,
    lost         BIGINT NOT NULL DEFAULT 0,
    gathered_org BIGINT,
    gathered_at  BIGINT,
    kept_from    BIGINT,
    deleted_at   BIGINT,
    swept        BIGINT NOT NULL DEFAULT 0
);
-- Logs whose rows the sweep deletes, because their file has them.
CREATE INDEX log_heads_to_sweep ON log_heads (kept_from) WHERE swept = 0 AND kept_from IS NOT NULL;
-- Logs past their retention, whose rows and file the sweep deletes.
CREATE INDEX log_heads_to_delete ON log_heads (kept_from) WHERE swept < 2 AND kept_from IS NOT NULL;

-- Frames of a log, as they arrived. By their end: a reader asks for the first chunk that ends after its offset.
CREATE TABLE log_chunks (
    job_id BIGINT NOT NULL,
    ends   BIGINT NOT NULL,
    starts BIGINT NOT NULL,
    frames BYTEA  NOT NULL,
    PRIMARY KEY (job_id, ends)
);
