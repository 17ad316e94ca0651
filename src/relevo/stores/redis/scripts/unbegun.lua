-- Runs that never began; put in front of the scripts that give such jobs back.

-- When a job was due before it was taken.
local function moment_before(root, id, was)
  if was.due ~= '' then
    return tonumber(was.due)
  end
  local front = string.match(call('HGET', root .. ':jobs', id) or '', '^[^\n]*')
  if string.find(front, '"a":[', 1, true) then -- it has waited for others; until when, nothing tells
    return tonumber(was.began)
  end
  return tonumber(string.match(front, '"r":(%d+)'))
    or (tonumber(call('ZSCORE', root .. ':all', id)) or at) + (string.match(front, '"d":(%d+)') or 0)
end

-- The job is as it was before it was taken: ready, in its place, with no line about it. With
-- unique="latest" a later one of its key takes its place again, if it has never begun before either.
local function give_back(root, id, was)
  local job = facts(root, id)
  local attempt = math.max(was.attempt - 1, 0)
  local latest = job.unique == 'l' and attempt == 0 and was.turn == 0
    and call('HEXISTS', root .. ':history', id) == 0
    and call('HGET', root .. ':keys', job.key) == id
  leave_running(root, id, job, was)
  if latest then
    call('HDEL', root .. ':keys', job.key)
    call('ZADD', root .. ':latest:' .. job.key, call('ZSCORE', root .. ':all', id) or at, id)
  end
  requeue(root, id, job, was, attempt, math.min(moment_before(root, id, was), at))
  if latest then
    advance(root, job.key)
  end
end

