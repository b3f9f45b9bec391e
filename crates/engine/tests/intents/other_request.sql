-- The run of an execution is another one that does not exist.
UPDATE executions SET request = $1 WHERE id = $2
