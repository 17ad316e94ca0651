-- Dead letters by fingerprint, most first.
-- KEYS  the roots of the queues
-- ARGV  4 how many of each
-- Answers queue, fingerprint, count, first and last moment, newest job, its last line of history.

local answer = {}
for _, root in ipairs(KEYS) do
  local rows = call('ZREVRANGE', root .. ':groups', 0, ARGV[4] - 1, 'WITHSCORES')
  for n = 1, #rows, 2 do
    local key = root .. ':group:' .. redis.sha1hex(rows[n])
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    local last = call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    if last[1] then
      local history = call('HGET', root .. ':history', last[1]) or ''
      answer[#answer + 1] = { name_of(root), rows[n], rows[n + 1], first[2], last[2], last[1],
        string.match(history, '[^\n]*$') }
    end
  end
end
return answer
