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

local function is_live(root, id)
  return call('HEXISTS', root .. ':jobs', id) == 1 and not is_ended(status(root, id).state)
end

-- Verdict, the job that stands for it, and whether its payload is another; nothing if it is unknown.
local function recalled(root, id)
  if not call('ZSCORE', root .. ':remembered', id) then
    return nil
  end
  local mark, holder = string.match(call('HGET', root .. ':stood', id) or id, '^(!?)(.*)$')
  return is_live(root, holder) and 'in_progress' or 'done', holder, mark == '!'
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

-- The numbers of those that did not go in, as they have the place of another time, or of another
-- line; and number, verdict and id of each.
local function find_known(root, all)
  local ids, known_ones, met = {}, {}, {}
  for n = 1, #all / 2 do
    ids[n] = all[2 * n]
  end
  for n, place in ipairs(read('ZMSCORE', root .. ':all', ids)) do
    if tonumber(place) ~= tonumber(all[2 * n - 1]) then
      known_ones[n] = true
      met[#met + 1] = { n - 1, known(root, ids[n]), ids[n] }
    end
  end
  return known_ones, met
end

-- Whether a job of this id has left a list and is still to be passed over there: one that comes in
-- again must not go into a list, or nobody could tell the two apart.
local function is_gone(root, id)
  return call('SISMEMBER', root .. ':gone', id) == 1
end

local put

-- Those whose ids are remembered are answered, and the others put.
local function put_unknown(root, band, all, blobs, moments)
  local ids, met = {}, {}
  for n = 1, #blobs do
    ids[n] = all[2 * n]
  end
  local others, their_blobs, their_moments, places = {}, {}, {}, {}
  for n, moment in ipairs(read('ZMSCORE', root .. ':remembered', ids)) do
    if moment then
      met[#met + 1] = { n - 1, recalled(root, ids[n]) }
    else
      local m = #places + 1
      places[m], their_blobs[m], their_moments[m] = n - 1, blobs[n], moments[n]
      others[2 * m - 1], others[2 * m] = all[2 * n - 1], ids[n]
    end
  end
  for _, one in ipairs(put(root, band, others, their_blobs, their_moments, true)) do
    met[#met + 1] = { places[one[1] + 1], one[2], one[3] }
  end
  return met
end

-- Some of one queue and band: rank and id of each, their blobs, and the moments of those that are
-- not ready. Answers number, verdict and id of those that were there.
function put(root, band, all, blobs, moments, are_unknown)
  if not are_unknown and call('EXISTS', root .. ':remembered') == 1 then
    return put_unknown(root, band, all, blobs, moments)
  end
  local known_ones, met = {}, {}
  if list(root, all) < #all / 2 then
    known_ones, met = find_known(root, all)
  end
  local jobs, fresh, due = {}, {}, {}
  local gone = call('EXISTS', root .. ':gone') == 1
  for n = 1, #blobs do
    if not known_ones[n] then
      local id = all[2 * n]
      jobs[#jobs + 1] = id
      jobs[#jobs + 1] = blobs[n]
      if moments[n] or gone and is_gone(root, id) then
        due[#due + 1] = moments[n] or string.format('%.4f', at)
        due[#due + 1] = id
      else
        fresh[#fresh + 1] = id
      end
    end
  end
  if jobs[1] then
    many('HSET', root .. ':jobs', jobs)
    many('RPUSH', root .. ':fresh:' .. band, fresh)
    many('ZADD', root .. ':due:' .. band, due)
    register(root)
    ring(root)
  end
  return met
end

