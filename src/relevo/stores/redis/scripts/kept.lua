-- Deliveries that are kept; put in front of the scripts that read and remove them.

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

-- Of a delivery only the answer stays, under the hash of its key; of a rejected one nothing.
local function shed_deliveries(root, set, ids)
  local left, gone, threads = {}, {}, {}
  for n, kept in ipairs(read('HMGET', root .. ':rows', ids)) do
    local front, key, reason, headers, answer, thread, start =
      string.match(kept or '', '^(%u|%d+|%d+|%d+)|([%d-]+)|(%d+)|(%d+)|(%d+)|(%x*)|()')
    if set == 'accepted' and front then
      start = start + (tonumber(key) or 0) + reason + headers
      left[#left + 1] = ids[n]
      left[#left + 1] = front .. '|-|0|0|' .. answer .. '||'
        .. string.sub(kept, start, start + answer - 1)
    else
      gone[#gone + 1] = ids[n]
    end
    threads[n] = (thread or '') .. ' ' .. ids[n]
  end
  many('HSET', root .. ':rows', left)
  many('HDEL', root .. ':rows', gone)
  many('HDEL', root .. ':bodies', ids)
  many('HDEL', root .. ':again', ids)
  many('ZREM', root .. ':threads', threads)
  many('ZREM', root .. ':' .. set, ids)
end

local function prune_deliveries(root, keep, keep_rejected, most)
  local removed = 0
  for set, length in pairs({ accepted = keep, rejected = keep_rejected }) do
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
  for _, set in ipairs({ 'accepted', 'rejected' }) do
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
