-- Jobs, newest first, that may be what a filter means; the caller looks again, closely.
-- KEYS  the roots of the queues
-- ARGV  4 how many, 5 '' or 'own' if one state's jobs are wanted in that state's own order instead of
--       that in which they came in: there are many; 6 '' or letters of states (r ready, s scheduled, R W P H D X C), 7 '1'
--       if of park 8, 9 '1' if of fingerprint 10, 11 '' or the moment before which there is none,
--       12 '1' if only to be counted, 13 how many things must be found in the text, then for each
--       how many spellings and these; last for each queue where to start
-- Answers for each queue: some rows, rank and a row as read.lua answers it (or its id), and the rank
-- it got to, '' at the end.

local most, own, letters = tonumber(ARGV[4]), ARGV[5] == 'own', ARGV[6]
local park, print = ARGV[7] == '1' and ARGV[8], ARGV[9] == '1' and ARGV[10]
local oldest, counted = ARGV[11] == '' and '-inf' or ARGV[11], ARGV[12] == '1'
local needles, place = {}, 14
for n = 1, tonumber(ARGV[13]) do
  needles[n] = {}
  for i = 1, tonumber(ARGV[place]) do
    needles[n][i] = ARGV[place + i]
  end
  place = place + ARGV[place] + 1
end

local FEW = 10000
local sets = { W = 'waiting', P = 'parked', H = 'held', D = 'done', X = 'dead', C = 'cancelled' }

-- Done jobs and running ones by those that ended, or were taken, together: each time a moment and ids,
-- the latest first, from a moment on.
local function past_lines(root, bound)
  local n, lines = past_until(root, bound), {}
  return function()
    if n > 0 then
      if not lines[1] then
        lines = call('LRANGE', root .. ':past', math.max(0, n - 20), n - 1)
      end
      n = n - 1
      local expiry, rest = past_of(table.remove(lines))
      local ids = {}
      for id in string.gmatch(rest, '[^ ]+') do
        ids[#ids + 1] = id
      end
      return expiry, ids
    end
  end
end

local function claim_lines(root, bound)
  local newest = bound < math.huge and string.format('%d', bound) or '+inf'
  local rows, n, skip, some = {}, 1, 0, 200
  return function()
    if not rows[n] then
      rows = call('ZREVRANGEBYSCORE', root .. ':claims', newest, '-inf', 'WITHSCORES', 'LIMIT', skip,
        some)
      n, skip = 1, skip + some
    end
    local token, moment = rows[n], rows[n + 1]
    n = n + 2
    if token then
      return tonumber(moment), (running_of(root, token))
    end
  end
end

-- The sets that have all the candidates, the lists, and the lines.
local function candidates(root)
  local keys, lists, lines = {}, {}, {}
  if print then
    keys = { root .. ':group:' .. redis.sha1hex(print) }
  elseif park then
    keys = { root .. ':park:' .. redis.sha1hex(park) }
  elseif letters ~= '' then
    for letter in string.gmatch(letters, '%u') do
      keys[#keys + 1] = sets[letter] and root .. ':' .. sets[letter]
      lines[#lines + 1] = letter == 'D' and past_lines or letter == 'R' and claim_lines or nil
    end
    if string.find(letters, '[rs]') then
      for band = 0, 2 do
        keys[#keys + 1] = root .. ':due:' .. band
        if string.find(letters, 'r') then
          lists[#lists + 1] = root .. ':fresh:' .. band
        end
      end
      keys[#keys + 1] = root .. ':laned'
      keys[#keys + 1] = string.find(letters, 's') and root .. ':behind' or nil
    end
  end
  return keys, lists, lines
end

local function are_few(root, keys, lists, lines)
  local size = 0
  for _, some in ipairs(lines) do
    size = size + (some == past_lines and (call('HGET', root, 'past') or 0) or count_running(root))
  end
  for _, key in ipairs(keys) do
    size = size + call('ZCARD', key)
  end
  for _, list in ipairs(lists) do
    size = size + call('LLEN', list)
  end
  return (keys[1] or lines[1]) and size <= FEW
end

local function by_rank(a, b)
  return a[2] > b[2]
end

-- How many of a list, which is in the order of root:all, came in up to a moment.
local function count_until(root, list, moment)
  local low, high = 0, call('LLEN', list)
  while low < high do
    local middle = math.floor((low + high) / 2)
    -- One that is gone may have been forgotten, or have come in again.
    local id, n = first_fresh(root, list, middle, high)
    local came = id and call('ZSCORE', root .. ':all', id)
    if came and tonumber(came) <= moment then
      low = n + 1
    else
      high = middle
    end
  end
  return low
end

-- One state's jobs by their place in its own sets and lists: by moment, and of one moment by id.
-- Their rank is moment/id, and a start behind one reads (moment/id.
local function listed_there(root, keys, lists, lines, from)
  local past, moment, last = string.match(from, '^(%(?)([%d.]+)/?(%x*)$')
  local bound = tonumber(moment or math.huge)
  local found, floor = {}, nil -- what is older than the floor may not have been looked at yet

  local function add(id, score)
    local at_least = tonumber(score)
    if at_least < bound or at_least == bound and (id < last or past == '') then
      found[#found + 1] = { id, at_least, score .. '/' .. id }
    end
  end

  local function newer(a, b)
    return a[2] > b[2] or a[2] == b[2] and a[1] > b[1]
  end

  -- The oldest that was found behind the first so many is where this source was left.
  local function stop_here(before)
    local here = found[before + 1]
    for n = before + 2, #found do
      here = newer(here, found[n]) and found[n] or here
    end
    floor = (not floor or newer(here, floor)) and here or floor
  end

  for _, list in ipairs(lists) do
    local before = #found
    local first = bound < math.huge and count_until(root, list, bound) or call('LLEN', list)
    while first > 0 and #found == before do
      local ids = call('LRANGE', list, math.max(0, first - MOST), first - 1)
      local gone = read('SMISMEMBER', root .. ':gone', ids)
      local came = read('ZMSCORE', root .. ':all', ids)
      for n = #ids, 1, -1 do
        if came[n] and gone[n] == 0 then
          add(ids[n], came[n])
        end
      end
      first = first - #ids
    end
    if first > 0 then
      stop_here(before)
    end
  end

  for _, lines_of in ipairs(lines) do
    local before, latest = #found, nil
    for together_at, ids in lines_of(root, bound) do
      if #found - before >= MOST and together_at ~= latest then -- of a moment all were looked at
        stop_here(before)
        break
      end
      for _, id in ipairs(ids) do
        add(id, string.format('%d', together_at))
      end
      latest = together_at
    end
  end

  local newest = moment or letters == 'r' and '(' .. (now + 1) or '+inf'
  local oldest_of = letters == 's' and '(' .. now or '-inf'
  for _, key in ipairs(keys) do
    local before, skip, rows = #found, 0, nil
    local last = key == root .. ':behind' and '-inf' or oldest_of -- those are never ready
    repeat
      rows = call('ZREVRANGEBYSCORE', key, newest, last, 'WITHSCORES', 'LIMIT', skip, MOST)
      for n = 1, #rows, 2 do
        add(rows[n], rows[n + 1])
      end
      skip = skip + MOST
    until #found > before or #rows < 2 * MOST
    if #rows == 2 * MOST then
      stop_here(before)
    end
  end

  table.sort(found, newer)
  local rows = {}
  for n = 1, math.min(#found, MOST) do
    if not (floor and newer(floor, found[n])) then
      rows[2 * n - 1], rows[2 * n] = found[n][1], found[n][3]
    end
  end
  return rows, not floor and #rows == 2 * #found
end

-- Ids and ranks, newest first, and whether there are no more.
local function listed(root, from)
  local keys, lists, lines = candidates(root)
  if own then
    return listed_there(root, keys, lists, lines, from)
  end
  if not are_few(root, keys, lists, lines) then
    local rows = call('ZREVRANGEBYSCORE', root .. ':all', from, oldest, 'WITHSCORES', 'LIMIT', 0,
      MOST)
    return rows, #rows < 2 * MOST
  end
  local ids = {}
  for _, key in ipairs(keys) do
    for _, id in ipairs(call('ZRANGE', key, 0, -1)) do
      ids[#ids + 1] = id
    end
  end
  for _, list in ipairs(lists) do
    local some = call('LRANGE', list, 0, -1)
    for n, gone in ipairs(read('SMISMEMBER', root .. ':gone', some)) do
      ids[#ids + 1] = gone == 0 and some[n] or nil
    end
  end
  for _, lines_of in ipairs(lines) do
    for _, some in lines_of(root, math.huge) do
      for n = 1, #some do
        ids[#ids + 1] = some[n]
      end
    end
  end
  local bound = from == '+inf' and math.huge or tonumber(string.match(from, '[%d.]+'))
  local past = string.sub(from, 1, 1) == '('
  local found = {}
  for n, rank in ipairs(read('ZMSCORE', root .. ':all', ids)) do
    local score = tonumber(rank or math.huge)
    if score < bound or score == bound and rank and not past then
      found[#found + 1] = { ids[n], score, rank }
    end
  end
  table.sort(found, by_rank)
  local rows = {}
  for n, one in ipairs(found) do
    rows[2 * n - 1], rows[2 * n] = one[1], one[3]
  end
  return rows, true
end

local function state_fits(root, id, kept, blob)
  if letters == '' then
    return true
  end
  local state = kept and string.sub(kept, 1, 1) or 'Q'
  if state == 'Q' then
    local ready, scheduled = string.find(letters, 'r'), string.find(letters, 's')
    if ready and scheduled then
      return true
    elseif not (ready or scheduled) then
      return false
    end
    local due = shown_due(root, id, facts_of(blob))
    state = due and tonumber(due) < now + 1 and 'r' or 's'
  end
  return string.find(letters, state, 1, true)
end

local function text_fits(root, id, blob)
  local history
  for _, spellings in ipairs(needles) do
    local found = false
    for _, text in ipairs(spellings) do
      if not found then
        history = history or call('HGET', root .. ':history', id) or ''
        found = string.find(blob, text, 1, true) or string.find(history, text, 1, true)
      end
    end
    if not found then
      return false
    end
  end
  return true
end

local answer = {}
for n, root in ipairs(KEYS) do
  local from = ARGV[place + n - 1]
  local rows, whole = listed(root, from == '' and '+inf' or from)
  local found, reached = {}, ''
  local look = needles[1] or letters ~= '' or park or print or not counted
  for i = 1, #rows, 2 do
    local id, rank = rows[i], rows[i + 1]
    local fits = true
    if look then
      local blob = call('HGET', root .. ':jobs', id)
      fits = blob and state_fits(root, id, letters ~= '' and call('HGET', root .. ':state', id), blob)
        and text_fits(root, id, blob)
        and (not park or call('HGET', root .. ':parks', id) == park)
        and (not print or call('HGET', root .. ':prints', id) == print)
        and blob
    end
    if fits then
      found[#found + 1] = { rank, counted and not needles[1] and id or row(root, id, fits, false) }
    end
    if #found == most or i + 1 == #rows then
      reached = (i + 1 < #rows or not whole) and rank or ''
      break
    end
  end
  answer[n] = { found, reached }
end
return answer
