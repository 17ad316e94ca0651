-- Jobs as people see them; put in front of the scripts that read and count them.

-- The first of a list, from a place on and before another, that has not left it; and its place.
local function first_fresh(root, list, from, past)
  local some = 1
  while from < past do
    local ids = call('LRANGE', list, from, math.min(from + some, past) - 1)
    for n, gone in ipairs(read('SMISMEMBER', root .. ':gone', ids)) do
      if gone == 0 then
        return ids[n], from + n - 1
      end
    end
    from, some = from + some, math.min(10 * some, MOST)
  end
end

-- When a queued job is due, as people see it: one behind another of its key once that has ended.
local function shown_due(root, id, job)
  local moment = due_of(root, id, job)
  if behind_of(root, id, job) then
    return string.format('%.4f', math.max(tonumber(moment), now + 1000))
  end
  return moment
end

-- A job as `find` and `page` show it.
local function row(root, id, blob, whole)
  local kept = call('HGET', root .. ':state', id)
  local state = kept and string.sub(kept, 1, 1) or 'Q'
  local moment = ''
  if state == 'Q' then
    moment = shown_due(root, id, facts_of(blob))
  elseif state == 'R' then
    moment = status_of(kept).ended
  end
  local history = call('HGET', root .. ':history', id) or ''
  if not whole then
    history = string.match(history, '[^\n]*$')
  end
  return {
    name_of(root),
    id,
    blob,
    kept or '',
    moment or '',
    history,
    call('HGET', root .. ':results', id),
    call('HGET', root .. ':notes', id) or '',
    call('HGET', root .. ':parks', id),
    whole and call('HGET', root .. ':before', id) or '',
    whole and call('HGET', root .. ':joins', id) or '',
    whole and call('HGET', root .. ':grown', id) or '',
  }
end
