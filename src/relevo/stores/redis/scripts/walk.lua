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
local sets = { R = 'leases', W = 'waiting', P = 'parked', H = 'held', D = 'done', X = 'dead',
  C = 'cancelled' }

-- The sets that have all the candidates.
local function candidates(root)
  local keys = {}
  if print then
    keys = { root .. ':group:' .. redis.sha1hex(print) }
  elseif park then
    keys = { root .. ':park:' .. redis.sha1hex(park) }
  elseif letters ~= '' then
    for letter in string.gmatch(letters, '%u') do
      keys[#keys + 1] = root .. ':' .. sets[letter]
    end
    if string.find(letters, '[rs]') then
      for band = 0, 2 do
        keys[#keys + 1] = root .. ':due:' .. band
      end
      keys[#keys + 1] = root .. ':laned'
    end
  end
  return keys
end

local function are_few(keys)
  local size = 0
  for _, key in ipairs(keys) do
    size = size + call('ZCARD', key)
  end
  return keys[1] and size <= FEW
end

local function by_rank(a, b)
  return a[2] > b[2]
end

-- One state's jobs by their place in its own sets: by moment, and of one moment by id. Their rank
-- is moment/id, and a start behind one reads (moment/id.
local function listed_there(keys, from)
  local first = letters == 's' and '(' .. now or '-inf'
  if from == '+inf' and letters == 'r' then
    from = '(' .. (now + 1)
  end
  local moment, last = string.match(from, '^%(([%d.]+)/(%x+)$')
  local found, whole = {}, true
  for _, key in ipairs(keys) do
    local skip, mine, rows = 0, 0, nil
    repeat
      rows = call('ZREVRANGEBYSCORE', key, moment or from, first, 'WITHSCORES', 'LIMIT', skip, MOST)
      for n = 1, #rows, 2 do
        local id, score = rows[n], tonumber(rows[n + 1])
        if not moment or score < tonumber(moment) or id < last then
          mine = mine + 1
          found[#found + 1] = { id, score, rows[n + 1] .. '/' .. id }
        end
      end
      skip = skip + MOST
    until mine > 0 or #rows < 2 * MOST
    whole = whole and #rows < 2 * MOST
  end
  table.sort(found, function(a, b)
    if a[2] == b[2] then
      return a[1] > b[1]
    end
    return a[2] > b[2]
  end)
  local rows = {}
  for n = 1, math.min(#found, MOST) do
    rows[2 * n - 1], rows[2 * n] = found[n][1], found[n][3]
  end
  return rows, whole and #found <= MOST
end

-- Ids and ranks, newest first, and whether there are no more.
local function listed(root, from)
  local keys = candidates(root)
  if own then
    return listed_there(keys, from)
  end
  if not are_few(keys) then
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
    local job = facts_of(blob)
    local due = call('ZSCORE', job.lane == '' and root .. ':due:' .. job.band or root .. ':laned', id)
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
