-- Ends jobs by a person's word.
-- KEYS  the roots of the queues
-- ARGV  4 who, 5 why, 6 'cancel' what has not ended, or 'discard' what is dead or held, then for
--       each: queue (number of its key), id
-- Answers 1 or 0 for each, and the releases that the caller must carry to other slots.

local verb = ARGV[6]
local names = { Q = 'ready', R = 'running', W = 'waiting', P = 'parked', H = 'held', X = 'dead' }
local answer = {}

local function put_aside(root, id)
  local blob = call('HGET', root .. ':jobs', id)
  local job, was = facts_of(blob), status(root, id)
  local may = not is_ended(was.state)
  if verb == 'discard' then
    may = was.state == 'X' or was.state == 'H'
  end
  if not blob or not may then
    return 0
  end
  call('HSET', root, 'at', now)
  if was.state == 'R' then
    remember(root, id, was, 'cancelled', '')
  end
  leave(root, id, job, was)
  if verb == 'discard' then
    call('HSET', root .. ':notes', id, ARGV[5])
  end
  cancel(root, id, job, was)
  audit(root, ARGV[4], ARGV[5], verb, id, names[was.state], 'cancelled')
  return 1
end

for n = 7, #ARGV, 2 do
  answer[#answer + 1] = put_aside(KEYS[tonumber(ARGV[n])], ARGV[n + 1])
end
return { answer, climb_all() }
