-- How long a log is kept is counted from `kept_from`: the end of its run, as far as that was known when it was last looked at.
-- `swept`: 0 rows and a file, 1 a file, 2 neither. `deleted_at` is set before the bytes go, and is what readers are told.
ALTER TABLE log_heads ADD COLUMN kept_from BIGINT;
ALTER TABLE log_heads ADD COLUMN deleted_at BIGINT;
UPDATE log_heads SET kept_from = gathered_at;
DROP INDEX log_heads_to_sweep;
CREATE INDEX log_heads_to_sweep ON log_heads (kept_from) WHERE swept = 0 AND kept_from IS NOT NULL;
CREATE INDEX log_heads_to_delete ON log_heads (kept_from) WHERE swept < 2 AND kept_from IS NOT NULL;
