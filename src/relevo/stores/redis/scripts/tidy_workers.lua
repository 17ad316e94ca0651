-- On a cluster: removes workers that have been silent for long.
-- KEYS  the hash of workers
-- ARGV  4 how long, 5 how many at most
-- Answers how many.

return forget_workers(KEYS[1], tonumber(ARGV[4]), tonumber(ARGV[5]))
