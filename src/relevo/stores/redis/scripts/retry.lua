-- Makes jobs ready again, with fresh attempts.
-- KEYS  the roots of the queues
-- ARGV  4 who, 5 why, then for each: queue (number of its key), id, delay, '1' if it has children
--       to wait for, who are tied afterwards
-- Answers 1 or 0 for each.

local names = { Q = 'scheduled', P = 'parked', H = 'held', X = 'dead', C = 'cancelled' }
local answer = {}

-- Whether none of its key that was accepted later is live or has ever started. One that has started
-- itself, and not ended, is the one that the others wait for.
local function is_latest(root, id, job, was)
  if not is_ended(was.state) then
    return not behind_of(root, id, job)
  end
  local rank = tonumber(call('ZSCORE', root .. ':all', id) or 0)
  local newest = call('ZREVRANGE', root .. ':latest:' .. job.key, 0, 0)[1]
  return tonumber(call('HGET', root .. ':newest', job.key) or 0) <= rank
    and not (newest and tonumber(call('ZSCORE', root .. ':latest:' .. job.key, newest)) > rank)
    and not (has_started(root, id, was) and call('HEXISTS', root .. ':keys', job.key) == 1)
end

local function retry(root, id, delay, waits)
  local blob = call('HGET', root .. ':jobs', id)
  local job, was = facts_of(blob), status(root, id)
  if not blob or not names[was.state] then
    return 0
  end
  if was.state == 'Q' then
    local due = due_of(root, id, job)
    if not due or tonumber(due) < now + 1 then
      return 0
    end
  end
  if job.unique == 'l' then
    if not is_latest(root, id, job, was) then
      return 0
    end
  elseif job.key ~= '' then
    local holder = call('HGET', root .. ':keys', job.key)
    if holder and holder ~= id then
      return 0
    end
    call('HSET', root .. ':keys', job.key, id)
  end
  call('HSET', root, 'at', now)
  leave(root, id, job, was)
  if job.lane ~= '' and is_ended(was.state) then
    call('ZADD', root .. ':line:' .. job.lane, call('ZSCORE', root .. ':all', id) or at, id)
  end
  call('HDEL', root .. ':notes', id)
  if job.unique == 'l' and is_ended(was.state) then
    if has_started(root, id, was) then
      call('HSET', root .. ':keys', job.key, id)
    else
      enter_latest(root, id, job.key, call('ZSCORE', root .. ':all', id) or at, waits)
    end
  end
  if waits then
    call('HSET', root .. ':state', id, record('W', 0, '', '', now, '', '', was.turn))
    call('ZADD', root .. ':waiting', at, id)
    call('SADD', root .. ':pending:' .. id, '*')
  else
    was.suspicion, was.crashes = nil, nil
    requeue(root, id, job, was, 0, at + delay)
  end
  audit(root, ARGV[4], ARGV[5], 'retry', id, names[was.state], waits and 'waiting' or 'ready')
  return 1
end

for n = 6, #ARGV, 4 do
  answer[#answer + 1] =
    retry(KEYS[tonumber(ARGV[n])], ARGV[n + 1], tonumber(ARGV[n + 2]), ARGV[n + 3] == '1')
end
return answer
