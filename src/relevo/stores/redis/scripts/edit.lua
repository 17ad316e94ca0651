-- Changes jobs that are neither running nor done.
-- KEYS  the roots of the queues
-- ARGV  4 who, 5 why, then for each: queue (number of its key), id, blob as it was read, blob as it
--       is to be, '' or the moment it is due, hash before, hash after
-- Answers for each 1, 0, or -1 if it has changed since it was read.

local answer = {}

local function edit(root, id, before, after, moment, was_hash, new_hash)
  local blob = call('HGET', root .. ':jobs', id)
  local kept = call('HGET', root .. ':state', id)
  local was = status_of(kept)
  if not blob or was.state == 'R' or was.state == 'D' then
    return 0
  elseif blob ~= before then
    return -1
  end
  local job, new = facts_of(blob), facts_of(after)
  local due = tonumber(moment)
  call('HSET', root .. ':jobs', id, after)
  if was.state == 'Q' then
    due = due or tonumber(due_of(root, id, job) or at)
    leave_due(root, id, job)
    enter_due(root, id, new, due)
  end
  if due and kept then
    call('HSET', root .. ':state', id, record(was.state, was.attempt, was.began, was.ended,
      string.format('%.4f', math.max(due, 0)), was.token, was.worker, was.turn, was))
  end
  audit(root, ARGV[4], ARGV[5], 'edit', id, was_hash, new_hash)
  return 1
end

for n = 6, #ARGV, 7 do
  answer[#answer + 1] = edit(KEYS[tonumber(ARGV[n])], unpack(ARGV, n + 1, n + 6))
end
return answer
