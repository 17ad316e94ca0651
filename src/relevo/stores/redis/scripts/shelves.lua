-- Notes and workers; put in front of the scripts by which they go.

local function forget_notes(shelf, names)
  for _, name in ipairs(names) do
    call('HDEL', shelf, name)
    call('ZREM', shelf .. ':names', name)
    call('ZREM', shelf .. ':expiry', name)
  end
end

local function forget_workers(people, silence, most)
  local removed = 0
  local rows = call('HGETALL', people)
  for n = 1, #rows, 2 do
    local silent = tonumber(string.match(rows[n + 1], '^%d+|(%d+)|') or 0)
    if silent < now - silence and removed < most then
      call('HDEL', people, rows[n])
      removed = removed + 1
    end
  end
  return removed
end
