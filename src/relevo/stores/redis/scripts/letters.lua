-- Keeping deliveries; put in front of the scripts by which they come in.

-- The id under which a delivery is kept already.
local function kept_as(root, key, generation)
  for number, id in string.gmatch(call('HGET', root .. ':keys', key) or '', '(%-?%d+) (%x+)\n') do
    if number == generation then
      return id
    end
  end
end

-- Of a body that is not what is compared the row has the hash of what is.
local function print_of(root, id, body)
  local row = call('HGET', root .. ':rows', id) or ''
  return string.match(row, '[{,]"h":"(%x+)"}$') or redis.sha1hex(body)
end

-- Counts a repeat; answers whether its body is another.
local function count(root, id, print)
  local before = call('HGET', root .. ':again', id) or ''
  local times, ever = string.match(before, '^(%d+)|%d+|([01])$')
  local body = call('HGET', root .. ':bodies', id)
  local differs = body and print_of(root, id, body) ~= print
  ever = differs and '1' or ever or '0'
  call('HSET', root .. ':again', id, (times or 0) + 1 .. '|' .. now .. '|' .. ever)
  return differs
end

local function know(root, key, generation, id)
  local others = call('HGET', root .. ':keys', key) or ''
  call('HSET', root .. ':keys', key, others .. generation .. ' ' .. id .. '\n')
end

local function keep(n, root, key, generation)
  local id, state, came, thread = ARGV[n + 4], ARGV[n + 5], ARGV[n + 6], ARGV[n + 7]
  local named = ARGV[n + 11]
  local moment = came ~= '' and came or string.format('%.4f', at + n / 32768)
  came = came ~= '' and came or string.format('%d', now)
  call('HSET', root .. ':rows', id, ARGV[n + 8] .. came .. ARGV[n + 9])
  call('HSET', root .. ':bodies', id, ARGV[n + 10])
  call('ZADD', root .. ':' .. SETS[state], moment, id)
  if thread ~= '' then
    call('ZADD', root .. ':threads', 0, thread .. ' ' .. id)
  end
  if key ~= '' then
    know(root, key, generation, id)
  elseif named ~= '' then
    call('ZADD', root .. ':named', 0, named .. ' ' .. id)
  end
  return came
end

-- What becomes of the delivery whose words begin there: its row if it was here before, which counts
-- as a repeat, and 1 if this one's body is another; else '' or, if it is kept now, the moment it came.
local function receive(n, keeps)
  local root, key, generation = KEYS[tonumber(ARGV[n])], ARGV[n + 1], ARGV[n + 2]
  local id = key ~= '' and kept_as(root, key, generation)
  if id then
    local differs = count(root, id, ARGV[n + 3])
    local row = delivery_of(root, id, true)
    row[#row + 1] = differs and 1 or 0
    return row
  end
  return keeps and keep(n, root, key, generation) or ''
end

