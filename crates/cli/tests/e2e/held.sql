-- Workflows that some worker, dead or alive, has in its hands.
SELECT count(*) FROM work WHERE worker IS NOT NULL AND kind = 'workflow';
