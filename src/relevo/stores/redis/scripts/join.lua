-- Has parents wait for jobs that are on their way to other slots.
-- KEYS  the roots of the parents' queues
-- ARGV  4 for each: queue (number of its key), parent, child, policy, the job that caused it or '', '1'
--       if the parent has taken it already, by another name
-- Answers 1 for each that is waited for, or has ended; 0 where the parent does not take it.

local answer = {}
call('HSET', KEYS[1], 'at', now)
for n = 4, #ARGV, 6 do
  local root, parent, child = KEYS[tonumber(ARGV[n])], ARGV[n + 1], ARGV[n + 2]
  local is_known = call('SISMEMBER', root .. ':told:' .. parent, child) == 1
    or call('SISMEMBER', root .. ':pending:' .. parent, child) == 1
  local may = is_known or status(root, parent).state == 'W'
    and (ARGV[n + 5] == '1' or may_join(root, parent, ARGV[n + 4]))
  if may then
    wait_for(root, parent, child, ARGV[n + 3])
  end
  answer[#answer + 1] = may and 1 or 0
end
return answer
