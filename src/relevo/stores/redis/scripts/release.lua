-- Tells parents that children elsewhere have ended.
-- KEYS  the roots of the parents' queues
-- ARGV  4 for each: queue (number of its key), parent, child, child's queue, verdict (D, X, C), policy
-- Answers the releases that the caller must carry on to other slots.

call('HSET', KEYS[1], 'at', now)
for n = 4, #ARGV, 6 do
  release(KEYS[tonumber(ARGV[n])], unpack(ARGV, n + 1, n + 5))
end
return climb_all()
