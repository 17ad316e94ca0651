-- Ends runs, each only by whoever holds its lease.
-- KEYS  the roots of the queues
-- ARGV  4 how many groups of plain endings, then for each: queue (number of its key), token, keep,
--       how long their ids are remembered, how many, their ids
--       and for each rich ending: queue, id, token, state (D Q X C P H), delay, '1' if it spends
--       the attempt, failure, fingerprint, '1' if there is a result, result, park, 'p' if planned or
--       'r' if it never began, '' or suspicion+crashes
-- Answers the positions that were not ours any more, plain ones first, and the releases that the
-- caller must carry to other slots.

-- Done jobs that are kept until one moment. An id of another make goes into the set: in a line it
-- could be taken for several, or for a part of another.
local function enter_done(root, moment, ids)
  local expiry = string.format('%d', moment)
  local early = moment < tonumber(call('HGET', root, 'until') or 0)
  local kept, line, count = {}, {}, 0
  for n = 1, #ids do
    local id = ids[n]
    if early or #id ~= 32 or string.find(id, ' ', 1, true) then
      kept[#kept + 1], kept[#kept + 2] = expiry, id
    else
      count = count + 1
      line[count] = id
    end
  end
  many('ZADD', root .. ':done', kept)
  if count == 0 then
    return
  end
  for first = 1, count, MOST do
    local last = math.min(first + MOST - 1, count)
    call('RPUSH', root .. ':past', expiry .. ' ' .. table.concat(line, ' ', first, last))
  end
  call('HSET', root, 'until', expiry)
  call('HINCRBY', root, 'past', count)
end

local lost = {}
local place, arg = 0, 5

-- Done, with nothing to say: what most runs end in.
for _ = 1, tonumber(ARGV[4]) do
  local root, token, keep = KEYS[tonumber(ARGV[arg])], ARGV[arg + 1], ARGV[arg + 2]
  local remembered = tonumber(ARGV[arg + 3])
  local first, last = arg + 5, arg + 4 + tonumber(ARGV[arg + 4])
  local records = call('HMGET', root .. ':state', unpack(ARGV, first, last))
  local states, ended, ours = {}, {}, 0
  local seen, becomes -- runs of one claim have one record
  for n = first, last do
    if records[n - first + 1] ~= seen then
      seen, becomes = records[n - first + 1], nil
      local was = status_of(seen)
      if was.state == 'R' and was.token == token then
        becomes = record('D', was.attempt, was.began, now, was.due, token, was.worker, was.turn)
      end
    end
    if becomes then
      local id = ARGV[n]
      ours = ours + 1
      ended[ours] = id
      states[2 * ours - 1], states[2 * ours] = id, becomes
    else
      lost[#lost + 1] = place
    end
    place = place + 1
  end
  if ours > 0 then
    if keep ~= '0' then
      many('HSET', root .. ':state', states)
      enter_done(root, now + keep, ended)
    end
    if call('EXISTS', root .. ':before') == 1 then
      for _, id in ipairs(ended) do
        climb(root, id, 'D')
      end
    end
    if keep == '0' then
      for _, part in ipairs({ ':jobs', ':state', ':history', ':before' }) do
        many('HDEL', root .. part, ended)
      end
      many('ZREM', root .. ':all', ended)
      if remembered > 0 then
        remember_ids(root, ended, remembered)
      end
    end
    leave_claim(root, token, ours) -- a full server refuses it, but not after what makes room
    make_room(root)
  end
  arg = last + 1
end

-- Of the others, those that are done, by queue and how long they are kept.
local lines, order = {}, {}

local function keep_done(root, keep, id)
  local name = root .. string.format(' %d', keep)
  local line = lines[name]
  if not line then
    line = { root = root, keep = keep }
    lines[name], order[#order + 1] = line, line
  end
  line[#line + 1] = id
end

local words = { Q = 'retry', X = 'dead', C = 'cancelled', P = 'parked', H = 'held' }

local function settle(place, root, id, token, state, delay, spends, failure, print, result, park,
  how, marks)
  local was = status(root, id)
  if was.state ~= 'R' or was.token ~= token then
    lost[#lost + 1] = place
    return
  end
  -- The first write of this ending, refused by a full server before anything has moved.
  call('HSET', root, 'at', now)
  was.suspicion, was.crashes = nil, nil
  if marks ~= '' then
    local suspicion, crashes = string.match(marks, '^(%d+)%+(%d+)$')
    was.suspicion, was.crashes = tonumber(suspicion), tonumber(crashes)
  end
  if how == 'r' then
    give_back(root, id, was)
    return
  end
  local job = facts(root, id)
  if state ~= 'D' then
    local word = (state == 'Q' and not spends) and 'snooze' or words[state]
    remember(root, id, was, word, failure)
  end
  if result then
    call('HSET', root .. ':results', id, result)
  end
  local attempt = was.attempt
  if not spends then
    -- A turn that is over clears the count: nothing of the next one has failed yet.
    attempt = result and 0 or math.max(attempt - 1, 0)
  end
  leave_running(root, id, job, was)
  if state == 'Q' then
    was.turn = was.turn + (how == 'p' and 1 or 0)
    requeue(root, id, job, was, attempt, at + delay)
  elseif state == 'X' then
    bury(root, id, job, was, print)
  elseif state == 'C' then
    cancel(root, id, job, was)
  elseif state == 'P' then
    call('HSET', root .. ':state', id, record('P', attempt, '', '', was.due, '', '', was.turn, was))
    call('ZADD', root .. ':parked', at + place / 2048, id)
    call('ZADD', root .. ':park:' .. redis.sha1hex(park), at + place / 2048, id)
    call('HSET', root .. ':parks', id, park)
  elseif state == 'H' then
    call('HSET', root .. ':state', id, record('H', attempt, '', '', was.due, '', '', was.turn, was))
    call('ZADD', root .. ':held', now, id)
  else
    call('HSET', root .. ':state', id,
      record('D', was.attempt, was.began, now, was.due, was.token, was.worker, was.turn))
    conclude(root, id, job, 'D')
    if job.keep > 0 then
      keep_done(root, job.keep, id)
    else
      remove_rows(root, { id })
      if job.remember > 0 then
        remember_ids(root, { id }, job.remember)
      end
    end
  end
end

for n = arg, #ARGV, 13 do
  settle(place, KEYS[tonumber(ARGV[n])], ARGV[n + 1], ARGV[n + 2], ARGV[n + 3],
    tonumber(ARGV[n + 4]), ARGV[n + 5] == '1', ARGV[n + 6], ARGV[n + 7],
    ARGV[n + 8] == '1' and ARGV[n + 9], ARGV[n + 10], ARGV[n + 11], ARGV[n + 12])
  place = place + 1
end

for _, line in ipairs(order) do
  enter_done(line.root, now + line.keep, line)
end

if lost[1] then
  be_the_master()
end
return { lost, climb_all() }
