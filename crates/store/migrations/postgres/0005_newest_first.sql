-- Lists go by when a run was submitted: ids come from blocks, and each process has its own.
DROP INDEX runs_of_org;
DROP INDEX runs_open;
CREATE INDEX runs_newest ON runs (org_id, created_at, id) WHERE deleted_at IS NULL;
CREATE INDEX runs_newest_open ON runs (org_id, created_at, id) WHERE open = 1;
