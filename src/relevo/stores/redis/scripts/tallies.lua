-- How far groups have come.
-- KEYS  the roots of the queues
-- ARGV  4 how many of the newest, or 0, then ids
-- Answers for each: queue, id, blob, gate, opened, closed, members, and how many ended how.

local answer = {}
for _, root in ipairs(KEYS) do
  local ids = { unpack(ARGV, 5) }
  if ARGV[4] ~= '0' then
    ids = call('ZREVRANGE', root .. ':tallies', 0, tonumber(ARGV[4]) - 1)
  end
  for _, id in ipairs(ids) do
    local found = call('HMGET', root .. ':tally:' .. id, 'gate', 'opened', 'closed', 'members', 'D',
      'X', 'C')
    local blob = found[1] and call('HGET', root .. ':jobs', id)
    if blob then
      for n = 2, 7 do
        found[n] = tonumber(found[n] or 0)
      end
      answer[#answer + 1] = { name_of(root), id, blob, unpack(found) }
    end
  end
end
return answer
