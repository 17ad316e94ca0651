-- Writes intentions down; one that is there already stays as it is.
-- KEYS  the roots of the queues; beside each :effects (when) and :effects:… (name → effect)
-- ARGV  4 for each: queue (number of its key), job, name, state, hash of the result, what is
--       searched (key and result), effect
-- Answers state|created|updated|hash|length|searched,effect of each, as it is stored now.

local answer = {}
for n = 4, #ARGV, 7 do
  local root, job, name = KEYS[tonumber(ARGV[n])], ARGV[n + 1], ARGV[n + 2]
  local key = root .. ':effects:' .. redis.sha1hex(job)
  local kept = call('HGET', key, name)
  if not kept then
    -- Each effect has a moment of its own, or a page that ends between two of one moment would
    -- leave the second one out; the last of a large batch may lie in the next millisecond.
    local moment = at + n / 16384
    local updated = math.max(now, math.floor(moment))
    moment = string.format('%.4f', moment)
    kept = table.concat({ ARGV[n + 3], moment, updated, ARGV[n + 4], #ARGV[n + 5],
      ARGV[n + 5] .. ARGV[n + 6] }, '|')
    call('HSET', key, name, kept)
    call('ZADD', root .. ':effects', moment, member_of(job, name))
    register(root)
  end
  answer[#answer + 1] = kept
end
return answer
