-- Counts a crash for each job that is about to run alone, or takes it back.
-- KEYS  the roots of the queues
-- ARGV  4 for each: queue (number of its key), id, token, how many crashes that makes: a call that is
--       repeated after its answer was lost counts once
-- Answers 1 or 0 for each.

local answer, lost = {}, false
for n = 4, #ARGV, 4 do
  local root, id, token = KEYS[tonumber(ARGV[n])], ARGV[n + 1], ARGV[n + 2]
  local was = status(root, id)
  local ours = was.state == 'R' and was.token == token
  if ours then
    was.crashes = tonumber(ARGV[n + 3])
    call('HSET', root .. ':state', id, record('R', was.attempt, was.began, was.ended, was.due, token,
      was.worker, was.turn, was))
  end
  answer[#answer + 1] = ours and 1 or 0
  lost = lost or not ours
end
if lost then
  be_the_master()
end
return answer
