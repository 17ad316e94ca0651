-- How many jobs queues have in each state.
-- KEYS  the roots of the queues
-- Answers for each: name, mode, ready, scheduled, running, waiting, parked, held, done, dead,
-- cancelled, and when the oldest ready one was due, or ''.

local answer = {}
for n, root in ipairs(KEYS) do
  local ready, later, oldest = 0, 0, math.huge
  for _, part in ipairs({ ':due:0', ':due:1', ':due:2', ':laned' }) do
    local due = call('ZCOUNT', root .. part, '-inf', '(' .. (now + 1))
    ready = ready + due
    later = later + call('ZCARD', root .. part) - due
    if due > 0 then
      oldest = math.min(oldest, tonumber(call('ZRANGE', root .. part, 0, 0, 'WITHSCORES')[2]))
    end
  end
  for band = 0, 2 do
    local fresh = root .. ':fresh:' .. band
    local length = call('LLEN', fresh)
    ready = ready + length
    local head = first_fresh(root, fresh, 0, length)
    oldest = math.min(oldest, tonumber(head and call('ZSCORE', root .. ':all', head) or oldest))
  end
  ready = ready - call('SCARD', root .. ':gone')
  later = later + call('ZCARD', root .. ':behind')
  local line =
    { name_of(root), call('HGET', root, 'mode') or 'open', ready, later, count_running(root) }
  for _, part in ipairs({ 'waiting', 'parked', 'held', 'done', 'dead', 'cancelled' }) do
    local in_lines = part == 'done' and call('HGET', root, 'past') or 0
    line[#line + 1] = call('ZCARD', root .. ':' .. part) + in_lines
  end
  line[#line + 1] = oldest < math.huge and tostring(math.max(0, math.floor(at - oldest))) or ''
  answer[n] = line
end
return answer
