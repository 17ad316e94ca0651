-- Takes due jobs, shared evenly over the queues.
-- KEYS  the roots of the queues, the one to be served first in front
-- ARGV  4 worker, 5 lease, 6 token, 7 how many, then for each queue '' or
--       limit,lane limit,rate count,rate length,lane rate count,lane rate length,ordered,burst,margin
--       and |lane:limit of each lane that has a limit of its own, by its digest,
--       and '' or token,token… of claims whose answers never arrived
-- Answers now, in how many milliseconds to look again (-1: when something happens), and for each
-- queue that gave: its number, the ids, their blobs, their attempts ({} if all are first ones), their
-- turns ({} if all are 0), and id, suspicion and crashes of each that has any; last the releases that
-- the caller must carry to other slots.

local worker, lease, token, count = ARGV[4], tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local due_by, until_then = '(' .. (now + 1), string.format('%d', now + lease)
local soonest = math.huge

local function sooner(moment)
  soonest = math.min(soonest, tonumber(moment))
end

local queues = {}
local rated, special = false, false -- whether any of them is
for n, root in ipairs(KEYS) do
  local mode, laned, bell, latest = unpack(call('HMGET', root, 'mode', 'laned', 'bell', 'latest'))
  if mode ~= 'paused' then
    local want = { n = n, root = root, ids = {}, laned = laned, latest = latest, bell = bell,
      short = 'due', gone = call('EXISTS', root .. ':gone') == 1, passed = {}, fresh = true }
    local asked = ARGV[6 + 2 * n]
    want.unheard = ARGV[7 + 2 * n]
    if asked ~= '' then
      local values = {}
      local bounds, lanes = string.match(asked, '^([^|]*)(.*)$')
      for value in string.gmatch(bounds, '([^,]*),?') do
        values[#values + 1] = tonumber(value) or false
      end
      for lane, most in string.gmatch(lanes, '|([^|:]+):(%d+)') do
        want.lanes = want.lanes or {}
        want.lanes[lane] = tonumber(most)
      end
      want.limit, want.lane_limit = values[1], values[2]
      local function rate(most, length)
        return most and { most = most, length = length, burst = values[8], margin = values[9] }
      end
      want.rate, want.lane_rate = rate(values[3], values[4]), rate(values[5], values[6])
      want.ordered = values[7] == 1
      want.special = want.ordered
    end
    want.special = want.special or laned
    rated, special = rated or want.rate or want.lane_rate, special or want.special
    queues[#queues + 1] = want
  end
end

-- Rates: how many may begin now, and when the next of them, from what is kept of those that began.
--
-- With a burst (GCRA) that is the moment from which the rate would be even. Without one it is when how
-- many began: a job counts until it is a whole window old, and a margin for the answer to arrive.
--
-- A function costs something by being made: what most claims do not need is made for the others.
local allowance, kept_rate, spend_rate, kept_lane_rate, spend_lane_rate
if rated then
  local function burst_allowance(rate, kept)
    local gap = rate.length / rate.most
    local tat = math.max(tonumber(kept or 0) or 0, at)
    -- A hair of tolerance: the clock is finer than what a sum of gaps keeps.
    local free = math.floor((at + rate.burst * gap - tat) / gap + 1e-6)
    return free, function(nth)
      return tat + (nth - rate.burst) * gap
    end
  end

  local function entries_of(rate, kept)
    local entries, used = {}, 0
    for text, count in string.gmatch(kept or '', '([%d.]+) (%d+)') do
      local moment = math.min(tonumber(text) or 0, at) -- a clock set back makes none wait for long
      if moment + rate.length + rate.margin > at then
        entries[#entries + 1] = { moment, tonumber(count) }
        used = used + count
      end
    end
    return entries, used
  end

  function allowance(rate, kept)
    if rate.burst then
      return burst_allowance(rate, kept)
    end
    local entries, used = entries_of(rate, kept)
    local free = rate.most - used
    return math.max(free, 0), function(nth)
      local room = free
      for _, entry in ipairs(entries) do
        room = room + entry[2]
        if room >= nth then
          return entry[1] + rate.length + rate.margin
        end
      end
      return at + rate.length + rate.margin
    end
  end

  local ENTRIES = 32

  -- What is kept once some more have begun. Where there are too many entries, the two that are nearest
  -- to each other become one, at the later moment.
  local function spent(rate, kept, used)
    if rate.burst then
      local gap = rate.length / rate.most
      return string.format('%.4f', math.max(tonumber(kept or 0) or 0, at) + used * gap)
    end
    local entries = entries_of(rate, kept)
    entries[#entries + 1] = { at, used }
    while #entries > ENTRIES do
      local nearest = 1
      for n = 2, #entries - 1 do
        if entries[n + 1][1] - entries[n][1] < entries[nearest + 1][1] - entries[nearest][1] then
          nearest = n
        end
      end
      entries[nearest + 1][2] = entries[nearest + 1][2] + entries[nearest][2]
      table.remove(entries, nearest)
    end
    for n, entry in ipairs(entries) do
      entries[n] = string.format('%.3f %d', entry[1], entry[2])
    end
    return table.concat(entries, ',')
  end

  -- Where that is kept.
  function kept_rate(want)
    return call('HGET', want.root, want.rate.burst and 'tat' or 'log')
  end

  function spend_rate(want, used)
    call('HSET', want.root, want.rate.burst and 'tat' or 'log', spent(want.rate, kept_rate(want), used))
  end

  function kept_lane_rate(want, lane)
    if want.lane_rate.burst then
      return call('ZSCORE', want.root .. ':tats', lane)
    end
    return call('HGET', want.root .. ':logs', lane)
  end

  function spend_lane_rate(want, lane)
    local rate, root = want.lane_rate, want.root
    local kept = spent(rate, kept_lane_rate(want, lane), 1)
    if rate.burst then
      call('ZADD', root .. ':tats', kept, lane)
    else
      call('HSET', root .. ':logs', lane, kept)
      call('ZADD', root .. ':logged', now + rate.length + rate.margin + 1, lane)
    end
  end
end

-- How many this queue may give at all.
local function room(want, wanted)
  if want.limit then
    local free = want.limit - count_running(want.root) - #want.ids
    if free < wanted then
      wanted, want.short = math.max(free, 0), 'limit'
    end
  end
  if want.rate then
    local free, moment_of = allowance(want.rate, kept_rate(want))
    free = free - #want.ids
    if free < wanted then
      wanted = math.max(free, 0)
      sooner(moment_of(#want.ids + wanted + 1))
    end
  end
  return wanted
end

-- The first of a band by their moments: of those that came to be due, and of those that were ready
-- when they came in. `want` remembers how many it looked at, to be taken out in the end.
local function take_first(want, band, wanted)
  local root = want.root
  local due, fresh = root .. ':due:' .. band, root .. ':fresh:' .. band
  local skip, from = want[due] or 0, want[fresh] or 0
  local some = want.gone and math.max(wanted, 50) or wanted
  local ids = call('LRANGE', fresh, from, from + some - 1)
  local head =
    call('ZRANGEBYSCORE', due, '-inf', due_by, 'WITHSCORES', 'LIMIT', skip, 1)[2]
  local taken, before = 0, #want.ids
  -- What came to be due mostly stands behind all of these, and nothing needs merging: a worker that
  -- stops hands back what it has, and that waits behind a long list.
  local last = head and ids[1] and call('ZSCORE', root .. ':all', ids[#ids])
  if not want.gone and (not head or last and tonumber(head) > tonumber(last)) then
    taken = #ids
    if before == 0 then
      want.ids = ids
    else
      for n = 1, taken do
        want.ids[before + n] = ids[n]
      end
    end
    want[fresh] = from + taken
    return taken, head
  end
  local late = head
    and call('ZRANGEBYSCORE', due, '-inf', due_by, 'WITHSCORES', 'LIMIT', skip, wanted) or {}
  local gone = want.gone and read('SMISMEMBER', root .. ':gone', ids) or {}
  local came = head and read('ZMSCORE', root .. ':all', ids) or {}
  local further = #ids == some -- behind these, one may be before those that came to be due
  local l, f = 1, 1
  while taken < wanted and (ids[f] or late[l] and not further) do
    if ids[f] and gone[f] == 1 then
      want.passed[#want.passed + 1] = ids[f]
      f = f + 1
    else
      taken = taken + 1
      if ids[f] and not (late[l] and tonumber(late[l + 1]) <= tonumber(came[f] or 0)) then
        want.ids[before + taken] = ids[f]
        f = f + 1
      else
        want.ids[before + taken] = late[l]
        want.fresh = false
        l = l + 2
      end
    end
  end
  want[due], want[fresh] = skip + (l - 1) / 2, from + f - 1
  return taken, ids[1] and not ids[f]
end

-- The same, also past many that are gone, but not without end.
local function take_band(want, band, wanted)
  local taken, rounds = 0, 0
  while taken < wanted do
    local some, more = take_first(want, band, wanted - taken)
    taken, rounds = taken + some, rounds + 1
    if not more then
      break
    elseif rounds == 10 then
      sooner(now)
      break
    end
  end
  return taken
end

-- The plain way: the heads of the priority bands.
local function take_plain(want, wanted)
  local taken = 0
  for band = 0, 2 do
    if taken < wanted then
      taken = taken + take_band(want, band, wanted - taken)
    end
  end
  return taken
end

-- Lanes and order.
local take_lanes
if special then
  -- Whether a job is not to be taken, as a later one of its key is there.
  local function is_superseded(want, id, job)
    return want.latest and behind_of(want.root, id, job) and newest_of(want.root, job.key) ~= id
  end

  -- Jobs of a queue that is not laned, strictly one at a time in the order they came in.
  local function take_next(want)
    local root = want.root
    if want.next_taken then
      return 0
    end
    local from = call('HGET', root, 'head') or '-inf'
    local ids = call('ZRANGEBYSCORE', root .. ':all', from, '+inf', 'WITHSCORES', 'LIMIT', 0, MOST)
    for n = 1, #ids, 2 do
      local id = ids[n]
      local job, state = facts(root, id), status(root, id).state
      if job.lane == '' and not is_ended(state) and not is_superseded(want, id, job) then
        call('HSET', root, 'head', ids[n + 1])
        want.next_taken = true
        local moment = state == 'Q' and not behind_of(root, id, job) and due_of(root, id, job)
        if not moment then
          want.short = 'limit'
          return 0
        elseif tonumber(moment) >= now + 1 then
          sooner(moment)
          return 0
        end
        want.ids[#want.ids + 1] = id
        want.fresh = false
        want.pulled = want.pulled or {}
        want.pulled[#want.pulled + 1] = { id, job }
        return 1
      end
    end
    if #ids == 2 * MOST then
      call('HSET', root, 'head', ids[#ids])
      sooner(now)
    end
    return 0
  end

  -- Lane by lane, the least recently served first; jobs without a lane take turns as one more.
  -- A rank is drawn before anything else is written: a full server refuses it, and nothing has moved.
  local function rank_of(root)
    return call('HINCRBY', root, 'rank', 1)
  end

  local function wake_lanes(want)
    for band = 0, 2 do
      local rest = want.root .. ':rest:' .. band
      for _, lane in ipairs(call('ZRANGEBYSCORE', rest, '-inf', due_by, 'LIMIT', 0, MOST)) do
        call('ZADD', want.root .. ':turn:' .. band, 'NX', rank_of(want.root), lane)
        call('ZREM', rest, lane)
      end
    end
  end

  -- The next job of a lane: its id, or nothing and when to look again (nil: when something moves).
  local function next_of(want, lane, band)
    local root = want.root
    local key = root .. ':lane:' .. lane .. ':' .. band
    local head = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if want.ordered then
      local line = root .. ':line:' .. lane
      local first = call('ZRANGE', line, 0, 0)[1]
      local place = 0
      while first and want.latest and is_superseded(want, first, facts(root, first)) do
        place = place + 1
        first = call('ZRANGE', line, place, place)[1]
      end
      local moment = first and call('ZSCORE', key, first)
      head = moment and { first, moment } or {}
    end
    if not head[1] then
      return nil, nil
    elseif tonumber(head[2]) >= now + 1 then
      return nil, head[2]
    end
    local running = tonumber(call('HGET', root .. ':lanes', lane) or 0)
    local most = want.ordered and 1 or want.lane_limit
    local named = want.lanes and want.lanes[lane]
    if named and running >= named then
      -- Looked at again: nothing moves when the limit is taken back.
      return nil, string.format('%d', now + 5000)
    end
    if most and running >= most then
      return nil, nil
    end
    if want.lane_rate then
      local free, moment_of = allowance(want.lane_rate, kept_lane_rate(want, lane))
      if free < 1 then
        return nil, moment_of(1)
      end
    end
    return head[1], nil
  end

  local function serve(want, lane, band)
    local root = want.root
    local id, later = next_of(want, lane, band)
    if not id then
      call('ZREM', root .. ':turn:' .. band, lane)
      if later then
        call('ZADD', root .. ':rest:' .. band, 'LT', later, lane)
      else
        want.short = 'limit'
      end
      return 0
    end
    call('ZADD', root .. ':turn:' .. band, rank_of(root), lane)
    call('HINCRBY', root .. ':lanes', lane, 1)
    call('ZREM', root .. ':lane:' .. lane .. ':' .. band, id)
    call('ZREM', root .. ':laned', id)
    if want.lane_rate then
      spend_lane_rate(want, lane)
    end
    want.ids[#want.ids + 1] = id
    want.fresh = false
    return 1
  end

  local function plain_turn(want, band)
    if want.ordered then
      return band == 1 and take_next(want) or 0
    end
    return take_band(want, band, 1)
  end

  function take_lanes(want, wanted)
    local root, taken = want.root, 0
    if not want.woken then
      wake_lanes(want)
      want.woken = true
    end
    for band = 0, 2 do
      local turn, mine = root .. ':turn:' .. band, 'plain:' .. band
      local exhausted = false
      while taken < wanted do
        local head = call('ZRANGE', turn, 0, 0, 'WITHSCORES')
        local rank = tonumber(call('HGET', root, mine) or 0)
        if not exhausted and (not head[1] or rank <= tonumber(head[2])) then
          if plain_turn(want, band) == 1 then
            taken = taken + 1
            call('HSET', root, mine, rank_of(root))
          else
            exhausted = true
          end
        elseif head[1] then
          taken = taken + serve(want, head[1], band)
        else
          break
        end
      end
    end
    return taken
  end
end

-- The suspicion and the crashes of those that have any.
local function mark(marks, id, was)
  if was.suspicion then
    marks[#marks + 1] = { id, was.suspicion, was.crashes }
  end
end

local function joined(some, others)
  local all = {}
  for _, list in ipairs({ some, others }) do
    for n = 1, #list do
      all[#all + 1] = list[n]
    end
  end
  return all
end

-- What was given before, but never heard of, comes first, as the same attempt.
local left = count
local answer = {}
for _, want in ipairs(queues) do
  if want.unheard ~= '' then
    local root, ids, attempts, turns, states, marks = want.root, {}, {}, {}, {}, {}
    local before = {}
    for old in string.gmatch(want.unheard, '%x+') do
      local found, standing = running_of(root, old)
      for n = 1, math.min(#found, left) do
        local was = standing[n]
        ids[#ids + 1], attempts[#attempts + 1] = found[n], was.attempt
        turns[#turns + 1] = was.turn
        states[#states + 1] = found[n]
        states[#states + 1] =
          record('R', was.attempt, was.began, until_then, was.due, token, worker, was.turn, was)
        mark(marks, found[n], was)
      end
      before[old] = math.min(#found, left)
      left = left - before[old]
    end
    if ids[1] then
      want.again = ids
      enter_running(root, token, until_then, ids)
      many('HSET', root .. ':state', states)
      for old, count in pairs(before) do
        leave_claim(root, old, count)
      end
      answer[#answer + 1] = { want.n, ids, read('HMGET', root .. ':jobs', ids), attempts,
        turns, marks }
    end
  end
end

-- Even shares; what one queue leaves goes to the others.
local giving = queues
while left > 0 and giving[1] do
  local more = {}
  for n, want in ipairs(giving) do
    local share = math.ceil(left / (#giving - n + 1))
    local wanted = share > 0 and room(want, share) or 0
    local taken = 0
    if wanted > 0 then
      taken = want.special and take_lanes(want, wanted) or take_plain(want, wanted)
    end
    left = left - taken
    if taken == share and share > 0 then
      more[#more + 1] = want
    end
  end
  giving = more
end

for _, want in ipairs(queues) do
  local root, ids = want.root, want.ids
  if ids[1] then
    local blobs = read('HMGET', root .. ':jobs', ids)
    local records = want.fresh and {} or read('HMGET', root .. ':state', ids) -- none was ever taken
    local states, attempts, turns, marks = {}, {}, {}, {}
    local first = record('R', 1, now, until_then, '', token, worker, 0)
    for n = 1, #ids do
      local id = ids[n]
      states[2 * n - 1], states[2 * n] = id, first
      if records[n] then
        local was = status_of(records[n])
        for before = #attempts + 1, n - 1 do
          attempts[before] = 1
        end
        attempts[n] = was.attempt + 1
        states[2 * n] =
          record('R', was.attempt + 1, now, until_then, was.due, token, worker, was.turn, was)
        mark(marks, id, was)
        if was.turn > 0 then
          for before = #turns + 1, n - 1 do
            turns[before] = 0
          end
          turns[n] = was.turn
        end
      end
    end
    if attempts[1] then
      for rest = #attempts + 1, #ids do
        attempts[rest] = 1
      end
    end
    if turns[1] then
      for rest = #turns + 1, #ids do
        turns[rest] = 0
      end
    end
    enter_running(root, token, until_then, want.again and joined(want.again, ids) or ids)
    many('HSET', root .. ':state', states)
    for _, pulled in ipairs(want.pulled or {}) do
      leave_due(root, pulled[1], pulled[2])
    end
    if want.rate then
      spend_rate(want, #ids)
    end
    answer[#answer + 1] = { want.n, ids, blobs, attempts, turns, marks }
    want.blobs = blobs
  end
  for band = 0, 2 do
    local due, fresh = root .. ':due:' .. band, root .. ':fresh:' .. band
    if (want[due] or 0) > 0 then
      call('ZREMRANGEBYRANK', due, 0, want[due] - 1)
    end
    if (want[fresh] or 0) > 0 then
      call('LTRIM', fresh, want[fresh], -1)
    end
  end
  many('SREM', root .. ':gone', want.passed)
end

-- Jobs that were the newest of their keys when they were taken put those before them aside.
for _, want in ipairs(queues) do
  for n = 1, want.latest and #want.ids or 0 do
    local job = facts_of(want.blobs[n])
    if job.unique == 'l' then
      start_latest(want.root, want.ids[n], job.key)
    end
  end
end
local out = climb_all()

-- Whoever got less than asked for will sleep: the next job in must ring.
if left > 0 then
  for _, want in ipairs(queues) do
    local root = want.root
    if want.bell ~= want.short and (want.bell ~= 'limit' or want.short == 'limit') then
      call('HSET', root, 'bell', want.short)
    end
    for band = 0, 2 do
      local head = call('ZRANGE', root .. ':due:' .. band, 0, 0, 'WITHSCORES')[2]
      if head and tonumber(head) >= now + 1 then
        sooner(head)
      end
      if want.laned then
        local lane = call('ZRANGE', root .. ':rest:' .. band, 0, 0, 'WITHSCORES')[2]
        if lane then
          sooner(lane)
        end
      end
    end
  end
end
local look = -1
if soonest < math.huge then
  look = math.max(0, math.ceil(soonest - at))
end
return { now, look, answer, out }
