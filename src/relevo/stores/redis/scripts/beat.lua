-- Shows that a worker is alive.
-- KEYS  the hash of workers
-- ARGV  4 id, 5 for how long, 6 the worker

return call('HSET', KEYS[1], ARGV[4], table.concat({ now, now + ARGV[5], ARGV[6] }, '|'))
