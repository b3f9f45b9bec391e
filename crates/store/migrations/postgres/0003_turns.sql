-- The waiting list goes round the orgs: an org's jobs have successive turns, and equal turns go by submission.
ALTER TABLE jobs ADD COLUMN turn BIGINT;
UPDATE jobs SET turn = queue_seq WHERE queue_seq IS NOT NULL;
DROP INDEX jobs_waiting;
CREATE INDEX jobs_waiting ON jobs (pool_id, priority, turn, queue_seq) WHERE queue_seq IS NOT NULL;
CREATE INDEX jobs_turns ON jobs (pool_id, priority, turn) WHERE turn IS NOT NULL;
CREATE INDEX jobs_turns_of_org ON jobs (pool_id, priority, org_id, turn) WHERE turn IS NOT NULL;
