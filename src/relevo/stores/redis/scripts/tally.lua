-- How many jobs queues have in each state.
-- KEYS  the roots of the queues
-- Answers for each: name, mode, ready, scheduled, running, waiting, parked, held, done, dead,
-- cancelled, for how long the first ready one has been due, or '', and how long ago the oldest of
-- those that are ready, parked or held came in, or ''.

-- Each list is in the order in which its jobs came in. Of a set, which is in another order, so many
-- are looked at, in that order: of those that wait for long the oldest are, by and large, in front.
local LOOK = 200

local function oldest_of(root, ids, oldest)
  for _, came in ipairs(read('ZMSCORE', root .. ':all', ids)) do
    oldest = math.min(oldest, tonumber(came or oldest))
  end
  return oldest
end

local function age(moment)
  return moment < math.huge and tostring(math.max(0, math.floor(at - moment))) or ''
end

local answer = {}
for n, root in ipairs(KEYS) do
  local ready, later, first, oldest = 0, 0, math.huge, math.huge
  for _, part in ipairs({ ':due:0', ':due:1', ':due:2', ':laned' }) do
    local due = call('ZCOUNT', root .. part, '-inf', '(' .. (now + 1))
    ready = ready + due
    later = later + call('ZCARD', root .. part) - due
    if due > 0 then
      first = math.min(first, tonumber(call('ZRANGE', root .. part, 0, 0, 'WITHSCORES')[2]))
      local ids = call('ZRANGE', root .. part, 0, math.min(due, LOOK) - 1)
      oldest = oldest_of(root, ids, oldest)
    end
  end
  for band = 0, 2 do
    local fresh = root .. ':fresh:' .. band
    local length = call('LLEN', fresh)
    ready = ready + length
    local head = first_fresh(root, fresh, 0, length)
    local came = tonumber(head and call('ZSCORE', root .. ':all', head) or math.huge)
    first, oldest = math.min(first, came), math.min(oldest, came)
  end
  ready = ready - call('SCARD', root .. ':gone')
  later = later + call('ZCARD', root .. ':behind')
  local line =
    { name_of(root), call('HGET', root, 'mode') or 'open', ready, later, count_running(root) }
  for _, part in ipairs({ 'waiting', 'parked', 'held', 'done', 'dead', 'cancelled' }) do
    local in_lines = part == 'done' and call('HGET', root, 'past') or 0
    line[#line + 1] = call('ZCARD', root .. ':' .. part) + in_lines
  end
  for _, part in ipairs({ ':parked', ':held' }) do
    oldest = oldest_of(root, call('ZRANGE', root .. part, 0, LOOK - 1), oldest)
  end
  line[#line + 1] = age(first)
  line[#line + 1] = age(oldest)
  answer[n] = line
end
return answer
