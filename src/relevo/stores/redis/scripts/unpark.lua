-- Lets parked jobs go on, oldest first.
-- KEYS  the roots of the queues
-- ARGV  4 what they are parked behind, 5 how many at most, 6 spread, 7 how many went before, 8 how
--       many there are in all, '' to be counted, then the ids of those alone that may go; all if none
-- Answers how many went, and how many there are in all.

local park, most, spread, before = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local name = ':park:' .. redis.sha1hex(park)
local parked, all = {}, 0
for _, root in ipairs(KEYS) do
  for n = 9, #ARGV do
    local rank = call('ZSCORE', root .. name, ARGV[n])
    if rank then
      all = all + 1
      parked[#parked + 1] = { root, ARGV[n], tonumber(rank) }
    end
  end
  if #ARGV < 9 then
    all = all + call('ZCARD', root .. name)
    local rows = call('ZRANGE', root .. name, 0, math.min(most, MOST) - 1, 'WITHSCORES')
    for n = 1, #rows, 2 do
      parked[#parked + 1] = { root, rows[n], tonumber(rows[n + 1]) }
    end
  end
end
all = tonumber(ARGV[8]) or math.min(all, most)
if #KEYS > 1 or #ARGV > 8 then
  table.sort(parked, function(a, b)
    return a[3] < b[3]
  end)
end
local gone = math.min(#parked, most, MOST)
for n = 1, gone do
  local root, id = parked[n][1], parked[n][2]
  call('HSET', root, 'at', now)
  local job, was = facts(root, id), status(root, id)
  leave_park(root, id)
  local wait = all > 0 and (before + n - 1) * spread / all or 0
  requeue(root, id, job, was, was.attempt, at + wait + n / 2048)
end
return { gone, all }
