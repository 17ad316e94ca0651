-- Deliveries that are kept; put in front of the scripts that read and remove them.

-- The set of those in a state, by the state's letter.
local SETS = { A = 'accepted', R = 'rejected', I = 'ignored', F = 'failed', D = 'differs' }

-- A delivery as it is kept, with its body or without.
local function delivery_of(root, id, whole)
  return {
    root,
    id,
    call('HGET', root .. ':rows', id) or '',
    call('HGET', root .. ':again', id) or '',
    whole and call('HGET', root .. ':bodies', id) or '',
  }
end

-- Of a row what is in front of its lengths, the answer, the hash of its thread and the rest.
local function split(row)
  local front, key, reason, headers, answer, thread, start =
    string.match(row or '', '^(%u|%-?%d+|%d+|%d+)|([%d-]+)|(%d+)|(%d+)|(%d+)|(%x*)|()')
  if front then
    start = start + (tonumber(key) or 0) + reason + headers
    return front, string.sub(row, start, start + answer - 1), thread, string.sub(row, start + answer)
  end
end

-- Of a delivery only the answer stays, under the hash of its key; of one that was refused when it
-- came nothing.
local function shed_deliveries(root, set, ids)
  local left, gone, threads, named = {}, {}, {}, {}
  for n, kept in ipairs(read('HMGET', root .. ':rows', ids)) do
    local front, answer, thread, rest = split(kept)
    if front and (set ~= 'rejected' or string.find(rest, '[{,]"r":true[,}]')) then
      left[#left + 1] = ids[n]
      left[#left + 1] = front .. '|-|0|0|' .. #answer .. '||' .. answer
    else
      gone[#gone + 1] = ids[n]
      local hash = string.match(rest or '', '[{,]"k":"(%x+)"')
      named[#named + 1] = hash and hash .. ' ' .. ids[n]
    end
    threads[n] = (thread or '') .. ' ' .. ids[n]
  end
  many('HSET', root .. ':rows', left)
  many('HDEL', root .. ':rows', gone)
  many('HDEL', root .. ':bodies', ids)
  many('HDEL', root .. ':again', ids)
  many('ZREM', root .. ':threads', threads)
  many('ZREM', root .. ':named', named)
  many('ZREM', root .. ':' .. set, ids)
end

local function prune_deliveries(root, keep, keep_failed, keep_refused, most)
  local removed = 0
  for letter, set in pairs(SETS) do
    local length = letter == 'F' and keep_failed or letter == 'R' and keep_refused or keep
    local ids = most > removed and call('ZRANGEBYSCORE', root .. ':' .. set, '-inf', now - length,
      'LIMIT', 0, most - removed) or {}
    shed_deliveries(root, set, ids)
    removed = removed + #ids
  end
  return removed
end

-- The same for these, whatever their age.
local function erase_deliveries(root, ids)
  local removed = 0
  for _, set in pairs(SETS) do
    local mine = {}
    for _, id in ipairs(ids) do
      if call('ZSCORE', root .. ':' .. set, id) then
        mine[#mine + 1] = id
      end
    end
    if mine[1] then
      shed_deliveries(root, set, mine)
    end
    removed = removed + #mine
  end
  return removed
end
