-- Ties children to parents elsewhere.
-- KEYS  the roots of the children's queues
-- ARGV  4 for each: queue (number of its key), child, policy, parent, parent's queue
-- Answers for each how the child has ended (D, X, C), or ''.

local answer = {}
for n = 4, #ARGV, 5 do
  answer[#answer + 1] = tie(KEYS[tonumber(ARGV[n])], unpack(ARGV, n + 1, n + 4)) or ''
end
return answer
