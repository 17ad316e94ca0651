-- Storing jobs that need no looking up; put in front of the scripts by which jobs come in.

-- A queue's jobs rank in the order they came in, whatever the clocks of its servers did.
local function rank_after(root, moment)
  local last = call('ZREVRANGE', root .. ':all', 0, 0, 'WITHSCORES')[2]
  return math.max(moment, tonumber(last or 0) + 1 / 1024)
end

local function known(root, id)
  local state = call('HGET', root .. ':state', id)
  return is_ended(state and string.sub(state, 1, 1)) and 'done' or 'in_progress'
end

-- Into the list of all, but for those that are there; answers how many went in.
local function list(root, all)
  local fresh = 0
  for first = 1, #all, 2 * MOST do
    fresh = fresh + call('ZADD', root .. ':all', 'NX',
      unpack(all, first, math.min(first + 2 * MOST - 1, #all)))
  end
  return fresh
end

-- Leaves those out that did not go in: they have the place of another time, or of another line.
local function drop_known(root, all, jobs, due)
  local ids, fresh, met = {}, 0, {}
  for n = 1, #all / 2 do
    ids[n] = all[2 * n]
  end
  for n, place in ipairs(read('ZMSCORE', root .. ':all', ids)) do
    local blob, moment = jobs[2 * n], due[2 * n - 1]
    jobs[2 * n - 1], jobs[2 * n], due[2 * n - 1], due[2 * n] = nil, nil, nil, nil
    if tonumber(place) == tonumber(all[2 * n - 1]) then
      fresh = fresh + 1
      jobs[2 * fresh - 1], jobs[2 * fresh] = ids[n], blob
      due[2 * fresh - 1], due[2 * fresh] = moment, ids[n]
    else
      met[#met + 1] = { n - 1, known(root, ids[n]), ids[n] }
    end
  end
  return met
end

-- Some of one queue and band: rank and id, id and blob, moment and id of each. Answers number,
-- verdict and id of those that were there.
local function put(root, band, all, jobs, due)
  local met = list(root, all) < #all / 2 and drop_known(root, all, jobs, due) or {}
  if jobs[1] then
    many('HSET', root .. ':jobs', jobs)
    many('ZADD', root .. ':due:' .. band, due)
    register(root)
    ring(root)
  end
  return met
end

