-- Tells which deliveries are kept already, or keeps those that are not, all in this one step.
-- KEYS  the roots of the sources
-- ARGV  4 'ask' or 'keep', then for each
--         ask:  source (number of its key), hash of its key or '', generation, hash of its body
--         keep: the same and id, A or R, '' or the moment it came, hash of its thread or '', what is
--               in front of the moment in its row and what is behind, body
-- Answers for each its row if it was here before, which counts as a repeat; else '' or, if it is
-- kept now, the moment it came.

local keeps = ARGV[4] == 'keep'
local width = keeps and 11 or 4

local function known(root, key, generation)
  for number, id in string.gmatch(call('HGET', root .. ':keys', key) or '', '(%d+) (%x+)\n') do
    if number == generation then
      return id
    end
  end
end

-- Of a body that is sealed the row has the hash: no two seals of the same are alike.
local function print_of(root, id, body)
  local row = call('HGET', root .. ':rows', id) or ''
  return string.match(row, '[{,]"h":"(%x+)"}$') or redis.sha1hex(body)
end

local function count(root, id, print)
  local before = call('HGET', root .. ':again', id) or ''
  local times, differs = string.match(before, '^(%d+)|%d+|([01])$')
  local body = call('HGET', root .. ':bodies', id)
  if body and print_of(root, id, body) ~= print then
    differs = '1'
  end
  call('HSET', root .. ':again', id, (times or 0) + 1 .. '|' .. now .. '|' .. (differs or '0'))
end

local function keep(n, root, key, generation)
  local id, state, came, thread = ARGV[n + 4], ARGV[n + 5], ARGV[n + 6], ARGV[n + 7]
  local moment = came ~= '' and came or string.format('%.4f', at + n / 32768)
  came = came ~= '' and came or string.format('%d', now)
  call('HSET', root .. ':rows', id, ARGV[n + 8] .. came .. ARGV[n + 9])
  call('HSET', root .. ':bodies', id, ARGV[n + 10])
  call('ZADD', root .. (state == 'A' and ':accepted' or ':rejected'), moment, id)
  if thread ~= '' then
    call('ZADD', root .. ':threads', 0, thread .. ' ' .. id)
  end
  if key ~= '' then
    local others = call('HGET', root .. ':keys', key) or ''
    call('HSET', root .. ':keys', key, others .. generation .. ' ' .. id .. '\n')
  end
  return came
end

local answer = {}
for n = 5, #ARGV, width do
  local root, key, generation = KEYS[tonumber(ARGV[n])], ARGV[n + 1], ARGV[n + 2]
  local id = key ~= '' and known(root, key, generation)
  if id then
    count(root, id, ARGV[n + 3])
    answer[#answer + 1] = delivery_of(root, id, true)
  else
    answer[#answer + 1] = keeps and keep(n, root, key, generation) or ''
  end
end
return answer
