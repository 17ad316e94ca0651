-- Keeps deliveries with their jobs, all in this one step; on one server, where it can be one.
-- KEYS  the roots of the sources, then those of the queues
-- ARGV  4 how many sources, then for each delivery what receive takes to keep it, how many jobs it
--       brings, and of each: queue (number of its key), band, id, blob
-- Answers as receive does; or {-1}, if a queue is draining or something else is on its way to such a
-- source in several steps, and nothing has happened.

local WIDTH = 12
for n = 1, tonumber(ARGV[4]) do
  if call('EXISTS', KEYS[n] .. ':coming') == 1 then
    return { -1 }
  end
end
for n = tonumber(ARGV[4]) + 1, #KEYS do
  if call('HGET', KEYS[n], 'mode') == 'draining' then
    return { -1 }
  end
end

-- Jobs go first: if one of their keys is broken, no delivery is kept without them.
local lines, order, came, n = {}, {}, {}, 0

local function enter(queue, band, id, blob)
  local name = queue .. band
  local line = lines[name]
  if not line then
    local root = KEYS[tonumber(queue)]
    line = { root, band, {}, {}, {}, rank = rank_after(root, at) }
    lines[name], order[#order + 1] = line, line
  end
  local all, blobs = line[3], line[4]
  all[#all + 1] = string.format('%.4f', line.rank + n / 2048)
  all[#all + 1] = id
  blobs[#blobs + 1] = now .. blob
  n = n + 1
end

local arg = 5
while ARGV[arg] do
  local root, key, generation = KEYS[tonumber(ARGV[arg])], ARGV[arg + 1], ARGV[arg + 2]
  local name = root .. ' ' .. key .. ' ' .. generation
  local first = arg + WIDTH + 1
  local past = first + 4 * tonumber(ARGV[first - 1])
  if key == '' or not came[name] and not kept_as(root, key, generation) then
    came[name] = true -- the same once more brings nothing
    for job = first, past - 1, 4 do
      enter(ARGV[job], ARGV[job + 1], ARGV[job + 2], ARGV[job + 3])
    end
  end
  arg = past
end
for _, line in ipairs(order) do
  put(unpack(line))
end

local answer = {}
arg = 5
while ARGV[arg] do
  answer[#answer + 1] = receive(arg, true)
  arg = arg + WIDTH + 1 + 4 * tonumber(ARGV[arg + WIDTH])
end
return answer
