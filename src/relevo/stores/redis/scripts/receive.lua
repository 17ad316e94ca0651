-- Tells which deliveries are kept already, or keeps those that are not, all in this one step.
-- KEYS  the roots of the sources
-- ARGV  4 'ask' or 'keep', then for each
--         ask:  source (number of its key), hash of its key or '', generation, hash of what is
--               compared
--         keep: the same and id, letter of its state, '' or the moment it came, hash of its thread or
--               '', what is in front of the moment in its row and what is behind, body, hash of the
--               key of a refused one or ''
-- Answers for each its row if it was here before, which counts as a repeat, and 1 if the body is
-- another; else '' or, if it is kept now, the moment it came. Asked about, 0 while another body of
-- its key is on its way: between ask and keep its jobs are stored.

local keeps = ARGV[4] == 'keep'
local HELD = 3000 -- milliseconds, for a process that dies on the way

local function coming(n)
  local key, generation, print = ARGV[n + 1], ARGV[n + 2], ARGV[n + 3]
  local name, field = KEYS[tonumber(ARGV[n])] .. ':coming', key .. ' ' .. generation
  if keeps then
    call('HDEL', name, field)
    return
  elseif key == '' then
    return
  end
  local other, past = string.match(call('HGET', name, field) or '', '^(%x+) (%d+)$')
  if other and other ~= print and now < tonumber(past) then
    return 0
  end
  call('HSET', name, field, print .. ' ' .. string.format('%d', now + HELD))
  call('PEXPIRE', name, 2 * HELD)
end

local width = keeps and 12 or 4
local answer = {}
for n = 5, #ARGV, width do
  local known = receive(n, keeps)
  answer[#answer + 1] = known
  if keeps or known == '' then
    answer[#answer] = coming(n) or known
  end
end
return answer
