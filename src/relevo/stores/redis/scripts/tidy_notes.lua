-- On a cluster: removes notes past their time.
-- KEYS  the hash of a kind; beside it :names and :expiry
-- ARGV  4 how many at most
-- Answers how many.

local names = call('ZRANGEBYSCORE', KEYS[1] .. ':expiry', '-inf', now, 'LIMIT', 0, ARGV[4])
forget_notes(KEYS[1], names)
return #names
