-- Deliveries, newest first.
-- KEYS  sets of deliveries: root:accepted and those of other states, of sources
-- ARGV  4 how many, 5 '' or the hash of a key, 6 '' or the hash of a thread, 7 '1' if 8 must be
--       found in key, body or reason, then for each set where to start
-- Answers for each set: some rows, rank (moment/id) and delivery without its body, and the rank it
-- got to, '' at the end.

local most, key, thread = tonumber(ARGV[4]), ARGV[5], ARGV[6]
local only, text = ARGV[7] == '1', ARGV[8]

local function fits(root, id)
  if not only then
    return true
  end
  local kept = call('HGET', root .. ':rows', id) or ''
  local length, more, start = string.match(kept, '^%u|%-?%d+|%d+|%d+|([%d-]+)|(%d+)|%d+|%d+|%x*|()')
  if start then
    length = tonumber(length) or 0
    local words = string.sub(kept, start, start + length - 1)
    local reason = string.sub(kept, start + length, start + length + more - 1)
    if string.find(words, text, 1, true) or string.find(reason, text, 1, true) then
      return true
    end
  end
  return string.find(call('HGET', root .. ':bodies', id) or '', text, 1, true)
end

-- Whether a place is behind where to start: (moment/id, (moment or moment.
local function is_behind(from, score, id)
  local past, moment, last = string.match(from, '^(%(?)([%d.]+)/?(%x*)$')
  if not moment or score < tonumber(moment) then
    return true
  end
  return score == tonumber(moment) and (past == '' or last ~= '' and id < last)
end

-- The ids that a set has behind a hash.
local function behind(set, hash)
  local ids = call('ZRANGEBYLEX', set, '[' .. hash .. ' ', '(' .. hash .. '!')
  for n, member in ipairs(ids) do
    ids[n] = string.sub(member, #hash + 2)
  end
  return ids
end

-- The few that a key or a thread has.
local function chosen(set, root, from)
  local ids
  if key ~= '' then
    ids = behind(root .. ':named', key)
    for id in string.gmatch(call('HGET', root .. ':keys', key) or '', '%d+ (%x+)\n') do
      ids[#ids + 1] = id
    end
  else
    ids = behind(root .. ':threads', thread)
  end
  local found = {}
  for _, id in ipairs(ids) do
    local moment = call('ZSCORE', set, id)
    local fit = moment and is_behind(from, tonumber(moment), id)
    if fit and key ~= '' and thread ~= '' then
      fit = call('ZSCORE', root .. ':threads', thread .. ' ' .. id)
    end
    if fit then
      found[#found + 1] = { id, moment }
    end
  end
  table.sort(found, function(a, b)
    local one, other = tonumber(a[2]), tonumber(b[2])
    if one == other then
      return a[1] > b[1]
    end
    return one > other
  end)
  return found, true
end

-- All of them, a piece at a time; many may have come in one moment.
local function piece(set, from)
  local found, skip = {}, 0
  local highest = from == '' and '+inf' or string.match(from, '^%(([%d.]+)/') or from
  repeat
    local rows = call('ZREVRANGEBYSCORE', set, highest, '-inf', 'WITHSCORES', 'LIMIT', skip, MOST)
    for n = 1, #rows, 2 do
      if is_behind(from, tonumber(rows[n + 1]), rows[n]) then
        found[#found + 1] = { rows[n], rows[n + 1] }
      end
    end
    skip = skip + MOST
    if #rows < 2 * MOST then
      return found, true
    end
  until found[1]
  return found, false
end

local answer = {}
for n, set in ipairs(KEYS) do
  local root, from = string.match(set, '^(.*):%a+$'), ARGV[8 + n]
  local rows, whole
  if key ~= '' or thread ~= '' then
    rows, whole = chosen(set, root, from)
  else
    rows, whole = piece(set, from)
  end
  local found, reached = {}, ''
  for i, one in ipairs(rows) do
    local id, rank = one[1], one[2] .. '/' .. one[1]
    if fits(root, id) then
      found[#found + 1] = { rank, delivery_of(root, id, false) }
    end
    if #found == most or i == #rows then
      reached = (i < #rows or not whole) and rank or ''
      break
    end
  end
  answer[n] = { found, reached }
end
return answer
