-- Removes notes.
-- KEYS  the hash of a kind; beside it :names, in order, and :expiry
-- ARGV  4 the names …
-- Answers how many there were.

local removed = 0
for n = 4, #ARGV do
  local kept = call('HGET', KEYS[1], ARGV[n])
  if kept then
    local expires = tonumber(string.match(kept, '^%d+|(%d*)|'))
    if not expires or expires > now then
      removed = removed + 1
    end
    call('HDEL', KEYS[1], ARGV[n])
    call('ZREM', KEYS[1] .. ':names', ARGV[n])
    call('ZREM', KEYS[1] .. ':expiry', ARGV[n])
  end
end
return removed
