-- Closes groups, or shuts them.
-- KEYS  the roots of their queues
-- ARGV  4 1 to close or 2 to shut, then for each: queue (number of its key), id
-- Answers 1 or 0 for each, and the releases that the caller must carry to other slots.

local gate = ARGV[4]
local answer = {}

local function change(root, id)
  local tally = root .. ':tally:' .. id
  local was = call('HGET', tally, 'gate')
  if not was or status(root, id).state ~= 'W' or was >= gate then
    return 0
  end
  call('HSET', tally, 'gate', gate)
  call('HSETNX', tally, 'closed', now)
  if gate == '1' then
    release(root, id, id, name_of(root), 'D', 't')
  else -- it waits for itself again, whoever of its members ends
    call('SREM', root .. ':told:' .. id, id)
    call('SADD', root .. ':pending:' .. id, id)
  end
  return 1
end

for n = 5, #ARGV, 2 do
  answer[#answer + 1] = change(KEYS[tonumber(ARGV[n])], ARGV[n + 1])
end
return { answer, climb_all() }
