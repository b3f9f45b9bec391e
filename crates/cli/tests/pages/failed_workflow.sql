-- As if the provider had had no room.
UPDATE workflows SET status = 'failed', open = 0, doc = json_set(doc, '$.status', 'failed', '$.error', 'the provider has no room');
