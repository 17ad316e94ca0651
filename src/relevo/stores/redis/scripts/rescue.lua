-- Takes back jobs whose lease has lapsed, or all that a worker has.
-- KEYS  the roots of the queues
-- ARGV  4 the most to take back, 5 '' or the worker that is known to be gone, 6 how old a bundle
--       must be to be nobody's
-- Answers id, queue, worker and new state (Q or X) of each; the releases that the caller must
-- carry to other slots, with those that callers who died have left; the bundles they left; and
-- the milliseconds until the next lease lapses, -1 if nothing runs.

local left, gone = tonumber(ARGV[4]), ARGV[5]
local answer = {}

local function lapsed(root)
  return call('ZRANGEBYSCORE', root .. ':leases', '-inf', now, 'LIMIT', 0, left)
end

local function held_by(root, worker)
  local ids, from = {}, 0
  repeat
    local some = call('ZRANGE', root .. ':leases', from, from + MOST - 1)
    for n, kept in ipairs(read('HMGET', root .. ':state', some)) do
      if kept and status_of(kept).worker == worker and #ids < left then
        ids[#ids + 1] = some[n]
      end
    end
    from = from + MOST
  until #some < MOST or #ids >= left
  return ids
end

for _, root in ipairs(KEYS) do
  local ids = left > 0 and (gone == '' and lapsed(root) or held_by(root, gone)) or {}
  for _, id in ipairs(ids) do
    -- The first write of this rescue, refused by a full server before anything has moved.
    call('HSET', root, 'at', now)
    local job, was = facts(root, id), status(root, id)
    local dead = was.attempt >= job.attempts
    local message = 'the worker that had it went silent'
    if dead then
      message = 'it killed its worker ' .. was.attempt .. ' time' .. (was.attempt > 1 and 's' or '')
    end
    remember(root, id, was, 'rescued', '{"type":"WorkerLost","message":"' .. message
      .. '","fingerprint":"WorkerLost"}')
    leave_running(root, id, job)
    if dead then
      bury(root, id, job, was, 'WorkerLost')
    else
      requeue(root, id, job, was, was.attempt, at)
    end
    answer[#answer + 1] = { id, name_of(root), was.worker, dead and 'X' or 'Q' }
  end
  left = left - #ids
end

-- What was on its way to other slots, or being tied.
local bundles = {}
local out = climb_all()
for _, root in ipairs(KEYS) do
  local waiting = call('HGETALL', root .. ':out')
  for n = 1, #waiting, 2 do
    local child, parent = string.match(waiting[n], '^(%x+) (%x+)$')
    local verdict, policy, queue = string.match(waiting[n + 1], '^(%u) (%a) (%S+)$')
    out[#out + 1] = { name_of(root), child, verdict, policy, parent, queue }
  end
  local packed = call('HGETALL', root .. ':bundles')
  for n = 1, #packed, 2 do
    local since, jobs = string.match(packed[n + 1], '^(%d+)|(.*)$')
    if now - tonumber(since or 0) >= tonumber(ARGV[6]) then
      bundles[#bundles + 1] = { name_of(root), packed[n], jobs }
    end
  end
end

local lapse = -1
for _, root in ipairs(KEYS) do
  local first = call('ZRANGE', root .. ':leases', 0, 0, 'WITHSCORES')
  local left_ms = first[2] and math.max(0, math.ceil(tonumber(first[2]) - now))
  if left_ms and (lapse < 0 or left_ms < lapse) then
    lapse = left_ms
  end
end
return { answer, out, bundles, lapse }
