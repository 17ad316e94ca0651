-- Leaves the mark of a sleeper on queues.
-- KEYS  the roots of the queues
-- ARGV  4 for how long the worker means to sleep
-- Answers 1 if one of them has something to claim by then, else 0: what was scheduled since the
-- worker's last claim is not in what that claim told of the next due time.

local due_by = '(' .. (now + tonumber(ARGV[4]) + 1)
local found = 0
for _, root in ipairs(KEYS) do
  local mode, laned, bell = unpack(call('HMGET', root, 'mode', 'laned', 'bell'))
  if not bell then
    call('HSET', root, 'bell', 'limit')
  end
  if mode ~= 'paused' then
    for band = 0, 2 do
      if call('EXISTS', root .. ':fresh:' .. band) == 1
        or call('ZRANGEBYSCORE', root .. ':due:' .. band, '-inf', due_by, 'LIMIT', 0, 1)[1]
        or laned and (call('EXISTS', root .. ':turn:' .. band) == 1
          or call('ZRANGEBYSCORE', root .. ':rest:' .. band, '-inf', due_by, 'LIMIT', 0, 1)[1]) then
        found = 1
      end
    end
  end
end
return found
