-- Keeping deliveries; put in front of the scripts by which they come in.

-- The id under which a delivery is kept already.
local function kept_as(root, key, generation)
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

-- What becomes of the delivery whose words begin there: its row if it was here before, which counts
-- as a repeat; else '' or, if it is kept now, the moment it came.
local function receive(n, keeps)
  local root, key, generation = KEYS[tonumber(ARGV[n])], ARGV[n + 1], ARGV[n + 2]
  local id = key ~= '' and kept_as(root, key, generation)
  if id then
    count(root, id, ARGV[n + 3])
    return delivery_of(root, id, true)
  end
  return keeps and keep(n, root, key, generation) or ''
end

