-- Removes workers that have been silent for long.
-- KEYS  the hash of workers
-- ARGV  4 how long, 5 how many at most
-- Answers how many.

local removed = 0
local rows = call('HGETALL', KEYS[1])
for n = 1, #rows, 2 do
  local silent = tonumber(string.match(rows[n + 1], '^%d+|(%d+)|') or 0)
  if silent < now - ARGV[4] and removed < tonumber(ARGV[5]) then
    call('HDEL', KEYS[1], rows[n])
    removed = removed + 1
  end
end
return removed
