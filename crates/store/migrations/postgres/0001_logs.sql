-- Logs: the same tables as on SQLite, in the one database there is.

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
    swept        BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX log_heads_to_sweep ON log_heads (gathered_at) WHERE swept = 0 AND gathered_at IS NOT NULL;

CREATE TABLE log_chunks (
    job_id BIGINT NOT NULL,
    ends   BIGINT NOT NULL,
    starts BIGINT NOT NULL,
    frames BYTEA  NOT NULL,
    PRIMARY KEY (job_id, ends)
);
