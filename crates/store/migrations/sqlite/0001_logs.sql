-- The schema of the logs. On SQLite they have a file of their own, so that appending output never waits for the main writer.
-- Types and times are as in the main database. Above each index: the query that it serves.

-- A log: one sequence of bytes, of a job (`number` 0) or of one try of a step (`number`). Of a job, bytes from `base` on belong to `epoch`; `next_offset` is its length, `cut_at`
-- where the quota cut it off, `lost` how many bytes were announced and never arrived.
-- `sealed`: its command has ended and no bytes follow. `gathered_org` and `gathered_at`: the rows were copied into one file.
-- `kept_from`: retention counts from here (the end of the run, as far as it was known). `deleted_at` is set before the bytes
-- are deleted, and is what readers are told. `swept`: 0 rows and file, 1 the file only, 2 neither.
CREATE TABLE log_heads (
    subject      BIGINT NOT NULL,
    number       BIGINT NOT NULL,
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
    swept        BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (subject, number)
);
-- Logs whose rows the sweep deletes, because their file has them.
CREATE INDEX log_heads_to_sweep ON log_heads (kept_from) WHERE swept = 0 AND kept_from IS NOT NULL;
-- Logs past their retention, whose rows and file the sweep deletes.
CREATE INDEX log_heads_to_delete ON log_heads (kept_from) WHERE swept < 2 AND kept_from IS NOT NULL;

-- Frames of a log, as they arrived. By their end: a reader asks for the first chunk that ends after its offset.
CREATE TABLE log_chunks (
    subject BIGINT NOT NULL,
    number  BIGINT NOT NULL,
    ends    BIGINT NOT NULL,
    starts  BIGINT NOT NULL,
    frames  BLOB NOT NULL,
    PRIMARY KEY (subject, number, ends)
);

-- Of a run with several logs: how many frames have been stored of all of them.
CREATE TABLE run_logs (
    run_id     BIGINT NOT NULL PRIMARY KEY,
    next_frame BIGINT NOT NULL
);
-- Which frames of a run a row of chunks holds: those up to `last`, `count` of them. By their end, as the chunks.
CREATE TABLE run_frames (
    run_id  BIGINT NOT NULL,
    last    BIGINT NOT NULL,
    count   BIGINT NOT NULL,
    subject BIGINT NOT NULL,
    number  BIGINT NOT NULL,
    starts  BIGINT NOT NULL,
    ends    BIGINT NOT NULL,
    PRIMARY KEY (run_id, last)
);
-- Numbers of a log that is deleted go with it.
CREATE INDEX run_frames_of_log ON run_frames (subject, number);
