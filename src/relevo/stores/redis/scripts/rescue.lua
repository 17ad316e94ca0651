-- Takes back jobs whose lease has lapsed, or all that a worker has.
-- KEYS  the roots of the queues
-- ARGV  4 the most to take back, 5 '' or the worker that is known to be gone, 6 how old a bundle
--       must be to be nobody's, then for each job that was running in that worker: id, the suspicion
--       it is under at least, '1' if its last crash does not count, failure
-- Answers id, queue and worker of each; the releases that callers who died have left for the caller to
-- carry to other slots; the bundles they left; and the milliseconds until the next lease lapses, -1 if
-- nothing runs.

local left, gone = tonumber(ARGV[4]), ARGV[5]
local answer, losses = {}, {}
for n = 7, #ARGV, 4 do
  losses[ARGV[n]] =
    { suspicion = tonumber(ARGV[n + 1]), is_excused = ARGV[n + 2] == '1', failure = ARGV[n + 3] }
end

-- Nobody knows whether a run whose lease has lapsed had begun.
local function lapse_of(was)
  local message = 'the worker ' .. was.worker
    .. ' went silent; whether it had begun this run is not known'
  return {
    suspicion = 1,
    failure = '{"type":"WorkerLost","message":' .. cjson.encode(message)
      .. ',"fingerprint":"WorkerLost"}',
  }
end

-- Leases that an older version gave, job by job, become those of claims. One that is not later than
-- what the job has is of a run that is over.
local function adopt(root)
  local rows = call('ZRANGE', root .. ':leases', 0, MOST - 1, 'WITHSCORES')
  local claims = {}
  for n = 1, #rows, 2 do
    local id, moment = rows[n], tonumber(rows[n + 1])
    local was = status(root, id)
    if was.state == 'R' and moment > (tonumber(was.ended) or 0) then
      local claim = claims[was.token] or { first = math.huge }
      claims[was.token] = claim
      claim.first = math.min(claim.first, moment)
      claim[#claim + 1], claim[id] = id, true
      call('HSET', root .. ':state', id, record('R', was.attempt, was.began,
        string.format('%d', moment), was.due, was.token, was.worker, was.turn, was))
    end
  end
  for token, claim in pairs(claims) do
    for _, id in ipairs((running_of(root, token))) do -- those of its claim that came before
      claim[#claim + 1] = not claim[id] and id or nil
    end
    local first = math.min(claim.first, call('ZSCORE', root .. ':claims', token) or math.huge)
    enter_running(root, token, string.format('%d', first), { unpack(claim) })
  end
  if rows[1] then
    call('ZREMRANGEBYRANK', root .. ':leases', 0, #rows / 2 - 1)
  end
end

-- An older version goes on extending what was adopted, and not all of that may be adopted again.
local function leased_until(root, id, was)
  local moment = tonumber(was.ended) or 0
  if moment <= now then
    moment = math.max(moment, tonumber(call('ZSCORE', root .. ':leases', id) or 0))
  end
  return moment
end

-- Of the claims whose time has come, the jobs whose leases have lapsed; the others are looked at when
-- theirs do.
local function lapsed(root)
  local found, seen = {}, 0
  for _, token in ipairs(call('ZRANGEBYSCORE', root .. ':claims', '-inf', now, 'LIMIT', 0, MOST)) do
    if #found >= left or seen >= 10 * MOST then
      break
    end
    local ids, standing = running_of(root, token)
    local first = math.huge
    for n, was in ipairs(standing) do
      local moment = leased_until(root, ids[n], was)
      if moment <= now and #found < left then
        found[#found + 1] = ids[n]
      else
        first = math.min(first, moment)
      end
    end
    if ids[1] then
      enter_running(root, token, first < math.huge and string.format('%d', first) or now, ids)
    else
      drop_claim(root, token)
    end
    seen = seen + #ids
  end
  return found
end

local function held_by(root, worker)
  local found, from, some = {}, 0, 100
  repeat
    local tokens = call('ZRANGE', root .. ':claims', from, from + some - 1)
    local ids, standing = running_of(root, unpack(tokens))
    for n, was in ipairs(standing) do
      if was.worker == worker and #found < left then
        found[#found + 1] = ids[n]
      end
    end
    from = from + some
  until #tokens < some or #found >= left
  return found
end

for _, root in ipairs(KEYS) do
  adopt(root)
  local ids = left > 0 and (gone == '' and lapsed(root) or held_by(root, gone)) or {}
  for _, id in ipairs(ids) do
    -- The first write of this rescue, refused by a full server before anything has moved.
    call('HSET', root, 'at', now)
    local was = status(root, id)
    local loss = gone == '' and lapse_of(was) or losses[id]
    if loss then
      local job = facts(root, id)
      remember(root, id, was, 'rescued', loss.failure)
      leave_running(root, id, job, was)
      -- One more, and at least what the loss says; 0 leaves it.
      if loss.suspicion > 0 then
        was.suspicion = math.min(math.max((was.suspicion or 0) + 1, loss.suspicion), 3)
      end
      was.crashes = math.max((was.crashes or 0) - (loss.is_excused and 1 or 0), 0)
      requeue(root, id, job, was, math.max(was.attempt - 1, 0), at)
    else
      give_back(root, id, was)
    end
    answer[#answer + 1] = { id, name_of(root), was.worker }
  end
  left = left - #ids
end

-- What was on its way to other slots, or being tied.
local bundles, out = {}, {}
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
  local first = call('ZRANGE', root .. ':claims', 0, 0, 'WITHSCORES')
  local left_ms = first[2] and math.max(0, math.ceil(tonumber(first[2]) - now))
  if left_ms and (lapse < 0 or left_ms < lapse) then
    lapse = left_ms
  end
end
return { answer, out, bundles, lapse }
