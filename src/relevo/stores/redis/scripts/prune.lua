-- Removes what has been kept long enough. Keys for good stay, as hashes.
-- KEYS  the roots of the queues
-- ARGV  4 how long dead and cancelled jobs are kept, 5 how many at most, 6 how long workers may have
--       been silent, 7 how long deliveries are kept, 8 failed ones and 9 refused ones
-- Concluded effects are kept for the longer of 4 and 7: a replayed delivery finds them.
-- Answers how many.

local long_ago, left = now - ARGV[4], tonumber(ARGV[5])
local removed = 0

local function remove(root, set, before)
  if left <= 0 then
    return
  end
  local ids = call('ZRANGEBYSCORE', root .. set, '-inf', before, 'LIMIT', 0, left)
  if not ids[1] then
    return
  end
  remove_jobs(root, set, ids)
  left, removed = left - #ids, removed + #ids
end

-- Done jobs, from the front of their list; also past lines with nobody in them, but not without end.
local function remove_past(root)
  local list = root .. ':past'
  for _ = 1, 10 * MOST do
    if left <= 0 then
      return
    end
    local line = call('LINDEX', list, 0)
    local expiry, rest = past_of(line)
    if not line then
      -- Nobody is left to be counted, whatever was counted by mistake.
      call('HDEL', root, 'past', 'until')
      return
    elseif expiry > now then
      return
    end
    -- What comes first is what also a full server does.
    call('LPOP', list)
    local ids, others, ended, kept_blobs = {}, {}, {}, {}
    for id in string.gmatch(rest, '[^ ]+') do
      local some = #ids < left and ids or others
      some[#some + 1] = id
    end
    -- One that is there by mistake may have come in again since.
    local blobs = read('HMGET', root .. ':jobs', ids)
    for n, kept in ipairs(read('HMGET', root .. ':state', ids)) do
      local was = status_of(kept)
      if was.state == 'D' and (tonumber(was.ended) or 0) + facts_of(blobs[n]).keep <= now then
        ended[#ended + 1] = ids[n]
        kept_blobs[#ended] = blobs[n]
      end
    end
    remove_jobs(root, ':done', ended, kept_blobs)
    if others[1] then
      call('LPUSH', list, string.format('%d ', expiry) .. table.concat(others, ' '))
    end
    call('HINCRBY', root, 'past', 0 - #ids) -- a bare minus makes -0 of none
    left, removed = left - #ids, removed + #ended
  end
end

local function is_live(root, id)
  return call('HEXISTS', root .. ':jobs', id) == 1 and not is_ended(status(root, id).state)
end

-- Those of a job that has not ended stay, and are looked at again in a day.
local function remove_effects(root)
  local set, before = root .. ':concluded', now - math.max(ARGV[4], ARGV[7])
  for _ = 1, 10 do
    local rows = left > 0 and call('ZRANGEBYSCORE', set, '-inf', before, 'LIMIT', 0, left) or {}
    if not rows[1] then
      return
    end
    for _, member in ipairs(rows) do
      local job, name = parts_of(member)
      if is_live(root, job) then
        call('ZREM', set, member) -- first, as a full server does this too
        call('ZADD', set, before + 86400000, member)
      else
        remove_effect(root, job, name)
        left, removed = left - 1, removed + 1
      end
    end
  end
end

local function remove_remembered(root)
  local ids = left > 0
    and call('ZRANGEBYSCORE', root .. ':remembered', '-inf', now, 'LIMIT', 0, left) or {}
  many('ZREM', root .. ':remembered', ids)
  many('HDEL', root .. ':stood', ids)
  left, removed = left - #ids, removed + #ids
end

-- Keys whose jobs have all been gone for as long as those that died are kept.
local function remove_quiet(root)
  local quiet = root .. ':quiet'
  local keys = left > 0 and call('ZRANGEBYSCORE', quiet, '-inf', long_ago, 'LIMIT', 0, MOST) or {}
  for _, key in ipairs(keys) do
    if call('HEXISTS', root .. ':keys', key) == 1
      or call('EXISTS', root .. ':latest:' .. key) == 1 then
      call('ZADD', quiet, now, key)
    else
      call('ZREM', quiet, key)
      call('HDEL', root .. ':newest', key)
    end
  end
end

local function remove_logs(root)
  local lanes = call('ZRANGEBYSCORE', root .. ':logged', '-inf', now, 'LIMIT', 0, MOST)
  many('ZREM', root .. ':logged', lanes)
  many('HDEL', root .. ':logs', lanes)
end

-- On one server notes, workers and deliveries go in the same run.
local function remove_memory()
  for _, shelf in ipairs(call('SMEMBERS', prefix .. ':kinds')) do
    if left > 0 then
      local names = call('ZRANGEBYSCORE', shelf .. ':expiry', '-inf', now, 'LIMIT', 0, left)
      forget_notes(shelf, names)
      left, removed = left - #names, removed + #names
    end
  end
  local gone = forget_workers(prefix .. ':{workers}', tonumber(ARGV[6]), left)
  left, removed = left - gone, removed + gone
  for _, hook in ipairs(call('HKEYS', prefix .. ':hooks')) do
    gone = prune_deliveries(root_of(hook), ARGV[7], ARGV[8], ARGV[9], left)
    left, removed = left - gone, removed + gone
  end
end

for _, root in ipairs(KEYS) do
  remove_past(root)
  remove(root, ':done', now)
  remove(root, ':dead', long_ago)
  remove(root, ':cancelled', long_ago)
  remove_remembered(root)
  remove_quiet(root)
  remove_effects(root)
  remove_logs(root)
  call('ZREMRANGEBYSCORE', root .. ':tats', '-inf', now)
end
if together then
  remove_memory()
end
return removed
