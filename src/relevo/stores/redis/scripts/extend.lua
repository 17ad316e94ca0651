-- Keeps leases alive.
-- KEYS  the roots of the queues
-- ARGV  4 lease, then for each: queue (number of its key), id, token
-- Answers 1 or 0 for each.

local lease = tonumber(ARGV[4])
local answer, lost = {}, false
for n = 5, #ARGV, 3 do
  local root, id, token = KEYS[tonumber(ARGV[n])], ARGV[n + 1], ARGV[n + 2]
  local was = status(root, id)
  local ours = was.state == 'R' and was.token == token
  if ours then
    call('ZADD', root .. ':leases', now + lease, id)
  end
  answer[#answer + 1] = ours and 1 or 0
  lost = lost or not ours
end
if lost then
  be_the_master()
end
return answer
