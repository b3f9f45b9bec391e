-- The version table of a build before the first release.
CREATE TABLE schema (part TEXT NOT NULL PRIMARY KEY, version BIGINT NOT NULL, min_binary BIGINT NOT NULL);
INSERT INTO schema (part, version, min_binary) VALUES ('main', 6, 6);
