-- The machines of this database are unknown to it from now on, as after a restore from an older copy.
DELETE FROM instances;
DELETE FROM allocations;
DELETE FROM work WHERE kind IN ('instance', 'allocation');
