-- Writes notes, each only over the version it was made from.
-- KEYS  the hash of a kind; beside it :names, in order, and :expiry
-- ARGV  4 for each: name, version, '' or time to live, value
-- Answers 1 or 0 for each.

local answer = {}
for n = 4, #ARGV, 4 do
  local name, version, ttl, value = ARGV[n], tonumber(ARGV[n + 1]), ARGV[n + 2], ARGV[n + 3]
  local stored = 0
  local kept = call('HGET', KEYS[1], name)
  if kept then
    local held, expires = string.match(kept, '^(%d+)|(%d*)|')
    if expires == '' or tonumber(expires) > now then
      stored = tonumber(held)
    end
  end
  if stored == version then
    local expires = ttl ~= '' and now + ttl or ''
    call('HSET', KEYS[1], name, table.concat({ version + 1, expires, now, value }, '|'))
    call('ZADD', KEYS[1] .. ':names', 0, name)
    if expires ~= '' then
      call('ZADD', KEYS[1] .. ':expiry', expires, name)
    else
      call('ZREM', KEYS[1] .. ':expiry', name)
    end
    answer[#answer + 1] = 1
  else
    answer[#answer + 1] = 0
  end
end
return answer
