-- Removes notes past their time.
-- KEYS  the hash of a kind; beside it :names and :expiry
-- ARGV  4 how many at most
-- Answers how many.

local names = call('ZRANGEBYSCORE', KEYS[1] .. ':expiry', '-inf', now, 'LIMIT', 0, ARGV[4])
for _, name in ipairs(names) do
  call('HDEL', KEYS[1], name)
  call('ZREM', KEYS[1] .. ':names', name)
  call('ZREM', KEYS[1] .. ':expiry', name)
end
return #names
