-- Which workers have running jobs, a part of the claims at a time.
-- KEYS  the roots of the queues
-- ARGV  4 how many claims of each queue are passed over, 5 how many to look at
-- Answers now, worker, number of its running jobs and when the last of their leases lapses for each
-- claim, and 1 if there are more claims.

-- The jobs of a claim have one worker: that of any which still runs. The last to begin runs longest.
local function holder_of(root, token)
  local good, taken = pcall(cjson.decode, call('HGET', root .. ':taken', token) or '[]')
  for n = good and type(taken) == 'table' and #taken or 0, 1, -1 do
    local was = status(root, taken[n])
    if was.state == 'R' and was.token == token then
      return was
    end
  end
  return nil
end

local from, most = tonumber(ARGV[4]), tonumber(ARGV[5])
local answer, more = {}, 0
for _, root in ipairs(KEYS) do
  local tokens = call('ZRANGE', root .. ':claims', from, from + most - 1)
  for _, token in ipairs(tokens) do
    local was = holder_of(root, token)
    if was then
      answer[#answer + 1] = { was.worker, left_of(root, token), tonumber(was.ended) or 0 }
    end
  end
  more = #tokens == most and 1 or more
end
return { now, answer, more }
