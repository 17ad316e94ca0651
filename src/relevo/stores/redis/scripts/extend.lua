-- Keeps leases alive.
-- KEYS  the roots of the queues
-- ARGV  4 lease, then for each: queue (number of its key), id, token
-- Answers 1 or 0 for each.

local until_then = string.format('%d', now + tonumber(ARGV[4]))
local answer, lost = {}, false
local claims = {} -- root and token → whose leases of a claim were extended

for n = 5, #ARGV, 3 do
  local root, id, token = KEYS[tonumber(ARGV[n])], ARGV[n + 1], ARGV[n + 2]
  local was = status(root, id)
  local ours = was.state == 'R' and was.token == token
  if ours and was.ended ~= until_then then
    call('HSET', root .. ':state', id,
      record('R', was.attempt, was.began, until_then, was.due, token, was.worker,
        was.turn, was))
    claims[root] = claims[root] or {}
    claims[root][token] = claims[root][token] or {}
    table.insert(claims[root][token], id)
  end
  answer[#answer + 1] = ours and 1 or 0
  lost = lost or not ours
end

-- Where all were extended, nobody needs to look before these lapse, nor at those that have ended.
for root, tokens in pairs(claims) do
  for token, ids in pairs(tokens) do
    if #ids >= tonumber(call('HGET', root .. ':left', token) or math.huge) then
      enter_running(root, token, until_then, ids)
    else
      call('ZADD', root .. ':claims', 'XX', 'LT', until_then, token)
    end
  end
end
if lost then
  be_the_master()
end
return answer
