SELECT count(*) FROM pg_locks WHERE NOT granted
