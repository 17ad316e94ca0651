-- Replaces values of a hash that are still as they were read; payloads of jobs only while no run
-- of theirs has begun, or once they are done or cancelled.
-- KEYS  the hash
-- ARGV  4 for each: field, value as it was read, value as it is to be
-- Answers how many it has replaced.

local root = string.match(KEYS[1], '^(.*):jobs$')

local function may_run_on(id)
  local was = status(root, id)
  if was.state == 'D' or was.state == 'C' then
    return false
  end
  return was.state == 'R' or was.state == 'X' or was.attempt > 0 or (was.suspicion or 0) > 0
    or was.turn == 0 and call('HEXISTS', root .. ':history', id) == 1
end

local swapped = 0
for n = 4, #ARGV, 3 do
  local field = ARGV[n]
  if call('HGET', KEYS[1], field) == ARGV[n + 1] and not (root and may_run_on(field)) then
    call('HSET', KEYS[1], field, ARGV[n + 2])
    swapped = swapped + 1
  end
end
return swapped
