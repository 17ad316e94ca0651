-- Keys with unique="latest", where a job of one comes in, is taken or is retried; put in front of those
-- scripts.

-- One that never started gives way to a later one of its key.
local function replace(root, id, later)
  local job, was = facts(root, id), status(root, id)
  leave(root, id, job, was)
  call('HSET', root .. ':notes', id, 'replaced by ' .. later)
  cancel(root, id, job, was)
end

-- One more that has never started.
local function enter_latest(root, id, key, rank, waits)
  local before = newest_of(root, key)
  call('ZADD', root .. ':latest:' .. key, rank, id)
  if not waits then
    give_way(root, before, id, key)
  end
  -- A key whose job is held for days collects no more than one claim can put aside.
  if call('ZCARD', root .. ':latest:' .. key) > MOST then
    replace(root, call('ZRANGE', root .. ':latest:' .. key, 0, 0)[1], id)
  end
end

-- It has been taken: the earlier ones of its key that have never started are not needed any more.
local function start_latest(root, id, key)
  local name = root .. ':latest:' .. key
  local rank = call('ZSCORE', name, id)
  if rank then
    call('HSET', root .. ':keys', key, id)
    call('HSET', root .. ':newest', key, rank)
    call('ZREM', name, id)
    for _, other in ipairs(call('ZRANGEBYSCORE', name, '-inf', rank)) do
      replace(root, other, id)
    end
  end
end

local function has_started(root, id, was)
  return was.attempt > 0 or was.turn > 0 or was.began ~= ''
    or call('HEXISTS', root .. ':history', id) == 1
end
