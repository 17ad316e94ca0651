-- Notes by their names.
-- KEYS  the hash of a kind
-- ARGV  4 the names …
-- Answers version|expires|updated|value of each, or nothing. One past its time is as absent.

local answer = {}
for n = 4, #ARGV do
  local kept = call('HGET', KEYS[1], ARGV[n])
  local expires = kept and tonumber(string.match(kept, '^%d+|(%d*)|'))
  answer[#answer + 1] = (not expires or expires > now) and kept or false
end
return answer
