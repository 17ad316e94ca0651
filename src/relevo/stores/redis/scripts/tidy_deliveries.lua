-- On a cluster: removes of deliveries what has been kept long enough.
-- KEYS  the root of a source
-- ARGV  4 how long they are kept, 5 how long failed ones and 6 refused ones are, 7 how many at most
-- Answers how many.

return prune_deliveries(KEYS[1], ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7]))
