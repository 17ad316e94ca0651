-- Who is, or was, alive.
-- KEYS  the hash of workers
-- Answers now, and beat|until|worker of each.

return { now, call('HVALS', KEYS[1]) }
