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
    local moment = string.format('%.4f', math.min(at + n / 16384, now + 0.999))
    kept = table.concat({ ARGV[n + 3], moment, now, ARGV[n + 4], #ARGV[n + 5],
      ARGV[n + 5] .. ARGV[n + 6] }, '|')
    call('HSET', key, name, kept)
    call('ZADD', root .. ':effects', moment, member_of(job, name))
    register(root)
  end
  answer[#answer + 1] = kept
end
return answer
