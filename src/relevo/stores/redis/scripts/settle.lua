-- Ends runs, each only by whoever holds its lease.
-- KEYS  the roots of the queues
-- ARGV  4 how many plain endings, then for each: queue (number of its key), id, token, keep
--       and for each rich one: queue, id, token, state (D Q X C P H), delay, '1' if it spends the
--       attempt, failure, fingerprint, '1' if there is a result, result, park
-- Answers the positions that were not ours any more, plain ones first, and the releases that the
-- caller must carry to other slots.

local plain = tonumber(ARGV[4])
local lost = {}

local mine = {}
for n = 1, #KEYS do
  mine[n] = { ids = {}, tokens = {}, keeps = {}, places = {} }
end
for n = 0, plain - 1 do
  local run = mine[tonumber(ARGV[5 + 4 * n])]
  local i = #run.ids + 1
  run.ids[i], run.tokens[i] = ARGV[6 + 4 * n], ARGV[7 + 4 * n]
  run.keeps[i], run.places[i] = ARGV[8 + 4 * n], n
end

-- Done, with nothing to say: what most runs end in.
for n, root in ipairs(KEYS) do
  local run = mine[n]
  if run.ids[1] then
    local records = read('HMGET', root .. ':state', run.ids)
    local states, ended, kept, gone = {}, {}, {}, {}
    local seen, token, becomes -- runs of one claim have one record
    local keep, expiry
    for i, id in ipairs(run.ids) do
      if records[i] ~= seen then
        seen, token = records[i], nil
        local was = status_of(seen)
        if was.state == 'R' then
          token = was.token
          becomes = record('D', was.attempt, was.began, now, was.due, token, was.worker)
        end
      end
      if token and token == run.tokens[i] then
        ended[#ended + 1] = id
        if run.keeps[i] == '0' then
          gone[#gone + 1] = id
        else
          states[#states + 1] = id
          states[#states + 1] = becomes
          if run.keeps[i] ~= keep then
            keep = run.keeps[i]
            expiry = string.format('%d', now + keep)
          end
          kept[#kept + 1] = expiry
          kept[#kept + 1] = id
        end
      else
        lost[#lost + 1] = run.places[i]
      end
    end
    if ended[1] then
      many('HSET', root .. ':state', states)
      many('ZADD', root .. ':done', kept)
      many('ZREM', root .. ':leases', ended)
      if call('EXISTS', root .. ':before') == 1 then
        for _, id in ipairs(ended) do
          climb(root, id, 'D')
        end
      end
      if gone[1] then
        for _, part in ipairs({ ':jobs', ':state', ':history', ':before' }) do
          many('HDEL', root .. part, gone)
        end
        many('ZREM', root .. ':all', gone)
      end
      make_room(root)
    end
  end
end

local words = { Q = 'retry', X = 'dead', C = 'cancelled', P = 'parked', H = 'held' }

local function settle(place, root, id, token, state, delay, spends, failure, print, result, park)
  local was = status(root, id)
  if was.state ~= 'R' or was.token ~= token then
    lost[#lost + 1] = place
    return
  end
  -- The first write of this ending, refused by a full server before anything has moved.
  call('HSET', root, 'at', now)
  local job = facts(root, id)
  if state ~= 'D' then
    local word = (state == 'Q' and not spends) and 'snooze' or words[state]
    remember(root, id, was, word, failure)
  end
  if result then
    call('HSET', root .. ':results', id, result)
  end
  local attempt = spends and was.attempt or math.max(was.attempt - 1, 0)
  leave_running(root, id, job)
  if state == 'Q' then
    requeue(root, id, job, was, attempt, at + delay)
  elseif state == 'X' then
    bury(root, id, job, was, print)
  elseif state == 'C' then
    cancel(root, id, job, was)
  elseif state == 'P' then
    call('HSET', root .. ':state', id, record('P', attempt, '', '', was.due, '', ''))
    call('ZADD', root .. ':parked', at + place / 2048, id)
    call('ZADD', root .. ':park:' .. redis.sha1hex(park), at + place / 2048, id)
    call('HSET', root .. ':parks', id, park)
  elseif state == 'H' then
    call('HSET', root .. ':state', id, record('H', attempt, '', '', was.due, '', ''))
    call('ZADD', root .. ':held', now, id)
  else
    call('HSET', root .. ':state', id,
      record('D', was.attempt, was.began, now, was.due, was.token, was.worker))
    call('ZADD', root .. ':done', now + job.keep, id)
    conclude(root, id, job, 'D')
    if job.keep == 0 then
      for _, part in ipairs({ ':jobs', ':state', ':history', ':results', ':notes', ':before' }) do
        call('HDEL', root .. part, id)
      end
      call('ZREM', root .. ':done', id)
      call('ZREM', root .. ':all', id)
    end
  end
end

local place = plain
for n = 5 + 4 * plain, #ARGV, 11 do
  settle(place, KEYS[tonumber(ARGV[n])], ARGV[n + 1], ARGV[n + 2], ARGV[n + 3],
    tonumber(ARGV[n + 4]), ARGV[n + 5] == '1', ARGV[n + 6], ARGV[n + 7],
    ARGV[n + 8] == '1' and ARGV[n + 9], ARGV[n + 10])
  place = place + 1
end

if lost[1] then
  be_the_master()
end
return { lost, climb_all() }
