-- Notes of a kind in the order of their names.
-- KEYS  the hash of a kind; beside it :names
-- ARGV  4 the name to start behind, 5 how many
-- Answers name and version|expires|updated|value of each.

local answer = {}
local from, most = '(' .. ARGV[4], tonumber(ARGV[5])
if ARGV[4] == '' then
  from = '-'
end
repeat
  local names = call('ZRANGEBYLEX', KEYS[1] .. ':names', from, '+', 'LIMIT', 0, MOST)
  for _, name in ipairs(names) do
    local kept = call('HGET', KEYS[1], name)
    local expires = kept and tonumber(string.match(kept, '^%d+|(%d*)|'))
    if kept and #answer < most and (not expires or expires > now) then
      answer[#answer + 1] = { name, kept }
    end
    from = '(' .. name
  end
until #names < MOST or #answer >= most
return answer
