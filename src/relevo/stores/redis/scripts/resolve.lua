-- Writes down what came of a delivery whose function a job has run.
-- KEYS  the root of its source
-- ARGV  4 its id, 5 the job or '', 6 letter of the new state, 7 hash of the new key or '', 8 generation, 9
--       the new row
-- Answers 1; or 0 if the job does not stand for the delivery any more, and nothing has happened.

local root, id, job, state, key = KEYS[1], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local row = call('HGET', root .. ':rows', id) or ''
local _, _, _, rest = split(row)
local jobs = string.match(rest or '', '[{,]"j":(%[[^%]]*%])') or ''
local is_its = string.find(jobs, '"' .. job .. '"', 1, true)
if job == '' then -- for one that has no job: it is failed, or differs, and nothing came of it
  is_its = string.find(row, '^[FD]') and not string.find(jobs, '"', 1, true)
end
if not is_its then
  return 0
end
call('HSET', root .. ':rows', id, ARGV[9])
local before, after = SETS[string.sub(row, 1, 1)], SETS[state]
if before and before ~= after then
  call('ZADD', root .. ':' .. after, call('ZSCORE', root .. ':' .. before, id) or now, id)
  call('ZREM', root .. ':' .. before, id)
end
if key ~= '' and not kept_as(root, key, ARGV[8]) then
  know(root, key, ARGV[8], id)
end
return 1
