-- Stores jobs, all in this one step.
-- KEYS  the roots of the queues
-- ARGV  4 'plain', 'timed', 'rich' or 'forced', 5 how many jobs, 6 '' or the moment of the call, for
--       the part of it that goes to one of several slots, 7 '' or the places of these jobs in it;
--       then for each
--         plain: of some of a queue and band: queue (number of its key), band, how many, their ids
--                of 32 letters each, the lengths of their blobs in 4 bytes each, the blobs
--         timed: the same, and of each '' or +delay or @moment, and a comma
--         rich:  queue, id, band, '' or +delay or @moment, key, unique, lane, bundle, '1' if it
--                waits for others or '2' if for the members of a group, its cause as JSON, blob
--         forced: the same; bundles are stored also where a queue has begun to drain meanwhile
--       and behind rich jobs, edge by edge: parent's queue, parent, child's queue, child, policy; with
--       + in front of the policy the parent waits already
-- Answers {} when all are new; else of each that is not: position, verdict, the job that stands for it,
-- and 1 if the payload of that one is another. A call that is not rich and meets a draining queue stores
-- nothing and answers {-1}: ask again in the rich form.

local form, count = ARGV[4], tonumber(ARGV[5])
local began = tonumber(ARGV[6]) or at
local places = {}
for place in string.gmatch(ARGV[7], '%d+') do
  places[#places + 1] = tonumber(place)
end
local FIRST = 8
local answer = {}

local rank_from = {}
for n, root in ipairs(KEYS) do
  rank_from[n] = rank_after(root, began)
end

local function rank(queue, n)
  return string.format('%.4f', rank_from[queue] + (places[n + 1] or n) / 2048)
end

local draining, has_latest = {}, {}
local drains = false
for n, root in ipairs(KEYS) do
  local mode, latest = unpack(call('HMGET', root, 'mode', 'latest'))
  draining[n], has_latest[root] = mode == 'draining', latest
  drains = drains or draining[n]
end

-- When a job is due: now, after a delay, or at a moment of its own.
local function due_at(when, n)
  if when == '' then
    return at + n / 2048
  end
  local moment = tonumber(string.sub(when, 2)) + n / 2048
  return string.sub(when, 1, 1) == '+' and at + moment or moment
end

if form == 'plain' or form == 'timed' then
  if drains then
    return { -1 }
  end
  local arg, n = FIRST, 0
  while n < count do
    local queue, band, some = tonumber(ARGV[arg]), ARGV[arg + 1], tonumber(ARGV[arg + 2])
    local first = n
    local ids, lengths, packed = ARGV[arg + 3], ARGV[arg + 4], ARGV[arg + 5]
    local all, blobs, moments = {}, {}, {}
    local start = 1
    for i = 1, some do
      local a, b, c, d = string.byte(lengths, 4 * i - 3, 4 * i)
      local past = start + ((a * 256 + b) * 256 + c) * 256 + d
      all[2 * i - 1], all[2 * i] = rank(queue, n + i - 1), string.sub(ids, 32 * i - 31, 32 * i)
      blobs[i] = now .. string.sub(packed, start, past - 1)
      start = past
    end
    arg = arg + 6
    if form == 'timed' then
      local i = 0
      for when in string.gmatch(ARGV[arg], '([^,]*),') do
        i = i + 1
        moments[i] = when ~= '' and string.format('%.4f', due_at(when, n + i - 1))
      end
      arg = arg + 1
    end
    n = n + some
    for _, met in ipairs(put(KEYS[queue], band, all, blobs, moments)) do
      answer[#answer + 1] = { first + met[1], met[2], met[3], 0 }
    end
  end
  return answer
end

-- The rich form, job by job in the order they came.

local WIDTH = 11
local function field(n, name)
  return ARGV[FIRST + WIDTH * n + name]
end

-- What of a job is in front of its payload.
local function front_of(n)
  return facts_of('0' .. string.sub(field(n, 10), 1, 250))
end

local remembers = {}
for n, root in ipairs(KEYS) do
  remembers[root] = call('EXISTS', root .. ':remembered') == 1
end

-- A bundle is stored whole or not at all.
local closed = {}
if drains and form ~= 'forced' then
  for n = 0, count - 1 do
    local queue, bundle = tonumber(field(n, 0)), field(n, 7)
    if bundle ~= '' and draining[queue]
      and call('HEXISTS', KEYS[queue] .. ':jobs', field(n, 1)) == 0
      and not call('ZSCORE', KEYS[queue] .. ':remembered', field(n, 1)) then
      closed[bundle] = true
    end
  end
end

-- A job never taken nor moved, and ready from the start.
local function enter_fresh(root, id, band)
  call('RPUSH', root .. ':fresh:' .. band, id)
  ring(root)
end

local stands = {} -- id → the job that stands for it
local fresh = {} -- parents stored by this call

local function store(n, root, id, verdict, turn)
  local key, lane = field(n, 4), field(n, 6)
  local job = { band = field(n, 2), lane = lane, key = key, unique = key ~= '' and field(n, 5) }
  local due = due_at(field(n, 3), n)
  call('HSET', root .. ':jobs', id, now .. field(n, 10))
  call('ZADD', root .. ':all', 'NX', rank(tonumber(field(n, 0)), n), id)
  if job.unique == 'l' then
    if not has_latest[root] then
      has_latest[root] = '1'
      call('HSET', root, 'latest', 1)
    end
    enter_latest(root, id, key, call('ZSCORE', root .. ':all', id), field(n, 8) ~= '')
  elseif key ~= '' then
    call('HSET', root .. ':keys', key, id)
  end
  if lane ~= '' then
    call('HSET', root, 'laned', 1)
    call('ZADD', root .. ':line:' .. lane, call('ZSCORE', root .. ':all', id), id)
  end
  if field(n, 8) ~= '' then
    local moment = string.format('%.4f', math.max(due, 0))
    call('HSET', root .. ':state', id, record('W', 0, '', '', moment, '', '', turn))
    call('ZADD', root .. ':waiting', at, id)
    if field(n, 8) == '2' then
      call('SADD', root .. ':pending:' .. id, id)
      call('HSET', root .. ':tally:' .. id, 'gate', '0', 'opened', now)
      call('ZADD', root .. ':tallies', at, id)
    else
      fresh[id] = true
      call('SADD', root .. ':pending:' .. id, '*')
    end
  elseif verdict == 'new' and lane == '' and field(n, 3) == '' and job.unique ~= 'l'
    and not is_gone(root, id) then
    enter_fresh(root, id, job.band)
  else
    if turn > 0 then
      call('HSET', root .. ':state', id,
        record('Q', 0, '', '', string.format('%.4f', due), '', '', turn))
    end
    enter_due(root, id, job, due, verdict == 'new')
  end
  register(root)
  if verdict ~= 'new' then
    answer[#answer + 1] = { n, verdict, id }
  end
end

local function reopen(n, root, id)
  local job, was = facts(root, id), status(root, id)
  call('HSET', root, 'at', now)
  leave(root, id, job, was)
  call('HDEL', root .. ':state', id)
  call('HDEL', root .. ':results', id)
  call('HDEL', root .. ':notes', id)
  store(n, root, id, 'reopened', was.turn)
end

-- A command's own id, which has no job, is answered by the one that stands for it.
local function stand(n, root, id, holder, mark)
  local length = holder ~= id and front_of(n).remember or 0
  if length > 0 then
    remember_ids(root, { id }, length)
    call('HSET', root .. ':stood', id, mark .. holder)
    remembers[root] = true
  end
end

local JOINS = 20 -- as in job.py

-- A command joins a job by its key; whether its payload is another, of which the job gets a line.
local function join(n, root, id, holder)
  local asked = front_of(n).digest
  local kept = asked ~= '' and facts(root, holder).digest or ''
  -- Those made under different keys, which the first byte names, say nothing.
  local differs = kept ~= '' and kept ~= asked and string.sub(kept, 1, 2) == string.sub(asked, 1, 2)
  if differs then
    local before = call('HGET', root .. ':joins', holder) or '0'
    local total, lines = string.match(before, '^(%d+)(.*)$')
    local mine = '\n{"id":' .. cjson.encode(id) .. ','
    if not string.find(lines, mine, 1, true) then
      lines = lines .. mine .. '"cause":' .. field(n, 9) .. ',"at":' .. now .. '}'
      local _, breaks = string.gsub(lines, '\n', '\n')
      for _ = JOINS + 1, breaks do
        lines = string.sub(lines, (string.find(lines, '\n', 2, true)))
      end
      call('HSET', root .. ':joins', holder, total + 1 .. lines)
    end
  end
  stand(n, root, id, holder, differs and '!' or '')
  return differs and 1 or 0
end

-- The live job that has the key, for a command that may join it.
local function holder_of(root, key)
  return call('HGET', root .. ':keys', key) or has_latest[root]
    and call('ZREVRANGE', root .. ':latest:' .. key, 0, 0)[1]
end

-- Which parents, waiting already, each job is to be tied to.
local above = {}
for n = FIRST + WIDTH * count, #ARGV, 5 do
  if string.sub(ARGV[n + 4], 1, 1) == '+' then
    local child = ARGV[n + 3]
    above[child] = above[child] or {}
    table.insert(above[child], { root = KEYS[tonumber(ARGV[n])], parent = ARGV[n + 1] })
  end
end
local untied = {} -- those that a parent does not take

local function is_taken(n, id)
  local asker = string.match(field(n, 9), '^"(%x+)"$') or ''
  for _, one in ipairs(above[id] or {}) do
    if not may_join(one.root, one.parent, asker) then
      return false
    end
  end
  return true
end

local function admit(n)
  local root, id, key = KEYS[tonumber(field(n, 0))], field(n, 1), field(n, 4)
  if call('HEXISTS', root .. ':jobs', id) == 1 then
    answer[#answer + 1] = { n, known(root, id), id }
    return id
  end
  if remembers[root] then
    local verdict, holder, differs = recalled(root, id)
    if verdict then
      answer[#answer + 1] = { n, verdict, holder, differs and 1 or 0 }
      return holder
    end
  end
  if closed[field(n, 7)] then
    answer[#answer + 1] = { n, 'closed', id }
    return id
  end
  if above[id] and not is_taken(n, id) then
    untied[id] = true
    if field(n, 7) == '' then -- what is in a bundle was promised
      answer[#answer + 1] = { n, 'late', id }
      return id
    end
  end
  local bad
  if key ~= '' and field(n, 5) ~= 'l' then
    local holder = holder_of(root, key)
    if holder then
      answer[#answer + 1] = { n, 'in_progress', holder, join(n, root, id, holder) }
      return holder
    end
    local before = field(n, 5) == 'f' and call('HGET', root .. ':ever', key)
    if before then
      local first = string.sub(before, 2)
      if string.sub(before, 1, 1) == 'D' then
        answer[#answer + 1] = { n, 'done', first, join(n, root, id, first) }
        return first
      end
      bad = first
    end
  end
  if draining[tonumber(field(n, 0))] and not (form == 'forced' and field(n, 7) ~= '') then
    answer[#answer + 1] = { n, 'closed', id }
    return id
  end
  if bad and call('HEXISTS', root .. ':jobs', bad) == 1 then
    reopen(n, root, bad)
    stand(n, root, id, bad, '')
    return bad
  end
  store(n, root, id, bad and 'reopened' or 'new', 0)
  return id
end

for n = 0, count - 1 do
  stands[field(n, 1)] = admit(n)
end

local parents = {}
for n = FIRST + WIDTH * count, #ARGV, 5 do
  local above, parent = KEYS[tonumber(ARGV[n])], stands[ARGV[n + 1]] or ARGV[n + 1]
  local root, child, policy = KEYS[tonumber(ARGV[n + 2])], ARGV[n + 3], ARGV[n + 4]
  if string.sub(policy, 1, 1) == '+' then
    local verdict
    policy = string.sub(policy, 2)
    if not untied[child] and wait_for(above, parent, stands[child], policy) then
      child = stands[child]
      verdict = tie(root, child, policy, parent, name_of(above))
    end
    if verdict then
      climbing[#climbing + 1] = { root, child, verdict, policy, parent, name_of(above) }
    end
  elseif fresh[parent] then
    parents[parent] = above
    local holder = stands[child] or child
    if holder ~= child then
      stand_in(above, parent, child, holder)
      child = holder
    end
    call('SADD', above .. ':pending:' .. parent, child)
    local verdict = root and tie(root, child, policy, parent, name_of(above))
    if verdict or not root then
      climbing[#climbing + 1] =
        { root or above, child, verdict or 'D', policy, parent, name_of(above) }
    end
  end
end
for parent, above in pairs(parents) do
  climbing[#climbing + 1] = { above, '*', 'D', 'f', parent, name_of(above) }
end
climb_all()
return answer
