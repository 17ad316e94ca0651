-- The newest generation of deliveries.
-- KEYS  the root of their source
-- ARGV  4 the hashes of their keys …
-- Answers for each its row, or nothing.

local answer = {}
for n = 4, #ARGV do
  local newest, found = nil, nil
  local lines = call('HGET', KEYS[1] .. ':keys', ARGV[n]) or ''
  for number, id in string.gmatch(lines, '(%-?%d+) (%x+)\n') do
    if not newest or tonumber(number) > newest then
      newest, found = tonumber(number), id
    end
  end
  answer[#answer + 1] = found and delivery_of(KEYS[1], found, true) or false
end
return answer
