-- What a later release might leave behind: a schema that this binary must not touch.
UPDATE schema SET version = 1000, min_binary = 1000 WHERE part = 'main';
