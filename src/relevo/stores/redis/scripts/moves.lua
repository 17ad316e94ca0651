-- The moves a job makes, shared by every script and put in front of each.
--
-- A queue lives under one root, prefix:{queue}, on one slot:
--   root            HASH  mode, bell (someone sleeps), laned, latest, rank, head, tat, log, past, until,
--                   running
--   root:jobs       HASH  id → inserted|band|attempts|keep|key|unique|lane|{header} \npayload, a byte;
--                   keep+remember, if its id is remembered, and key-digest, if it has one
--   root:state      HASH  id → state|attempt|began|ended|due|token|worker; none: never yet taken;
--                   of one that runs, until when it is leased in place of ended; attempt+turn once a
--                   run has ended by plan; tab suspicion+crashes tab in front of the worker's name in
--                   jobs that have any, as versions before the seventh read any name there
--   root:all        ZSET  id → when it came in
--   root:fresh:0…2  LIST  jobs that were ready when they came in, in the order of root:all, by
--                   priority: most are, and a list costs the least;  root:gone  SET  those in it
--                   that have left since, to be passed over
--   root:due:0…2    ZSET  id → when it is due: all others, ready and scheduled, by priority
--   root:taken      HASH  token of a claim → the ids it took, as JSON;  root:left  HASH  token →
--                   how many of these still run, and in root: how many of all;  root:claims  ZSET
--                   token → when to look at them: no later than the first of their leases lapses
--   root:leases     ZSET  id → until when: an older version's, until rescue.lua has adopted them
--   root:waiting, :parked, :held, :dead, :cancelled  ZSET  id → since when
--   root:past       LIST  done jobs, each time those that ended together: until when they are kept,
--                   and their ids; in that order, to be forgotten from the front. In root: how many
--                   these are, and the last one's moment
--   root:done       ZSET  id → until when it is kept: those that are kept for less long than one
--                   that ended before them, and those with ids of another make
--   root:park:…     ZSET  id → since when, one per breaker;  root:parks  HASH  id → its name
--   root:keys       HASH  hash of a key → the live job that has it
--   root:ever       HASH  hash of a key for good → D or X, and the job
--   root:latest:…   ZSET  id → when it came in: of a key with unique="latest", the jobs that have
--                   never started;  root:newest  HASH  hash of such a key → when the latest came in of
--                   those that have started;  root:quiet  ZSET  the same → when a job of it last ended
--   root:behind     ZSET  id → when it is due: of these jobs, those that are not to be taken, because
--                   another of their key has started and not ended, or a later one is there
--   root:remembered ZSET  id → until when it is answered, though its job is gone or never was;
--                   root:stood  HASH  id → the job that stands for it, if that is another; ! in front
--                   if its payload is another
--   root:joins      HASH  id → how many commands with another payload joined it, and one line of JSON
--                   for each of the newest of them
--   root:history    HASH  id → one line of JSON per run that did not simply succeed
--   root:results, :notes  HASH  id → text
--   root:before     HASH  id → one line of policy, parent, parent's queue per job that waits for it
--   root:pending:…  SET   the children a waiting job still waits for; * while it is being tied, and its
--                   own id while its group is not closed
--   root:grown      HASH  id → one line of policy and child per job that it waits for since it came in,
--                   and one of =, child, : and job per job that stands for a child it came in with
--   root:told:…     SET   the children it has heard of: what is told again, or late, changes nothing
--   root:tally:…    HASH  of a group's job: gate (0 open, 1 closed, 2 shut), opened, closed, members, and
--                   D, X, C: how many ended how;  root:tallies  ZSET  its id → when it was opened
--   root:out        HASH  releases on their way to parents on other slots
--   root:bundles    HASH  bundles on their way to other slots
--   root:groups     ZSET  fingerprint → dead letters;  root:group:…  ZSET;  root:prints  HASH
--   root:laned, root:lane:…:0…2, root:line:…  ZSET  jobs with a lane: all, each lane's due ones,
--                   and each lane's unfinished ones in the order they came in
--   root:turn:0…2   ZSET  lane → rank, lanes that may have a due job, least recently served first
--   root:rest:0…2   ZSET  lane → when to look at it again
--   root:lanes      HASH  lane → how many run;  root:tats  ZSET  lane → its rate's next moment;
--                   root:logs  HASH  lane → when how many of it began;  root:logged  ZSET  lane → until
--                   when that counts
--
--   root:effects, root:concluded  ZSET  effect → when;  root:effects:…  HASH  name → effect
--   root:audit      STREAM  what people did
--
-- So does a source of deliveries, under prefix:{hook_…}, named by a hash:
--   root:rows       HASH  id → state|generation|status|moment|lengths of key, reason, headers and
--                   answer|hash of its thread|these, and {the rest}; state A R I F or D; key - once it
--                   is pruned
--   root:bodies     HASH  id → body;  root:again  HASH  id → repeats|last|1 if a body differed
--   root:accepted, :rejected (refused), :ignored, :failed, :differs  ZSET  id → when it came
--   root:keys       HASH  hash of a key → one line of generation and id for each
--   root:named      ZSET  hash of a key, id: of those that were refused, which keep no other out
--   root:threads    ZSET  hash of a thread, id
--
-- Beside them, on one server all in the same script, on a cluster on slots of their own:
--   prefix:schema   the layout's version;  prefix:bell  the channel
--   prefix:queues   SET  every queue there ever was
--   prefix:{notes_…}, :names, :expiry  a kind of notes;  prefix:kinds  SET  these
--   prefix:hooks    HASH  hook_… → the source;
--   prefix:{workers}  HASH;  prefix:{audit}:audit  STREAM  what people did elsewhere
--
-- Every script starts with: ARGV 1 offset of the clock, 2 who calls, 3 '1' if all slots are here.
-- A script that fails half way is not undone by Redis, so the first write of each is one that
-- a full server refuses.

local offset, caller, together = tonumber(ARGV[1]), ARGV[2], ARGV[3] == '1'
local call = redis.call
local time = call('TIME')
local at = time[1] * 1000 + time[2] / 1000 + offset
local now = math.floor(at)
local MOST = 1000

local prefix = string.match(KEYS[1], '^([^:]+):')

local function name_of(root)
  return string.match(root, '{(.*)}$')
end

local function root_of(queue)
  return prefix .. ':{' .. queue .. '}'
end

local function all_roots()
  local roots = call('SMEMBERS', prefix .. ':queues')
  table.sort(roots)
  for n, queue in ipairs(roots) do
    roots[n] = root_of(queue)
  end
  return roots
end

-- On a cluster the second half of the keys are those that are never there (see wire.py). On one
-- server the list of queues stands for all of them.
local KEYS = together and KEYS or { unpack(KEYS, 1, #KEYS / 2) }
if together and KEYS[1] == prefix .. ':queues' then
  KEYS = all_roots()
end

local registered = {}
local function register(root)
  if together and not registered[root] then
    registered[root] = true
    call('SADD', prefix .. ':queues', name_of(root))
  end
end

-- Calls a command with many values, some at a time.
local function many(command, key, values)
  for first = 1, #values, 2 * MOST do
    call(command, key, unpack(values, first, math.min(first + 2 * MOST - 1, #values)))
  end
end

local function read(command, key, names)
  local count = #names
  if count > 0 and count <= MOST then
    return call(command, key, unpack(names))
  end
  local found = {}
  for first = 1, count, MOST do
    local part = call(command, key, unpack(names, first, math.min(first + MOST - 1, count)))
    for n = 1, #part do
      found[first + n - 1] = part[n]
    end
  end
  return found
end

-- What a job was when it came in. One edited by hand is taken for a plain one.
local function facts_of(blob)
  local inserted, band, attempts, keep, remember, key, digest, unique, lane = string.match(blob or '',
    '^(%d+)|([012])|(%d+)|(%d+)%+?(%d*)|(%x*)%-?(%x*)|([ufl])|(%x*)|')
  return {
    inserted = inserted or '0',
    band = band or '1',
    attempts = tonumber(attempts or 1),
    keep = tonumber(keep or 0),
    remember = tonumber(remember) or 0,
    key = key or '',
    digest = digest or '',
    unique = key ~= '' and unique or 'u',
    lane = lane or '',
  }
end

local function facts(root, id)
  return facts_of(call('HGET', root .. ':jobs', id))
end

-- What is so now. A job that was never taken has no record: it is queued, with no attempt spent.
-- One without a suspicion or a crash has nil for both: a ninth field would double the table's size.
local function status_of(record)
  local state, attempt, turn, began, ended, due, token, worker =
    string.match(record or '', '^(%u)|(%d+)%+?(%d*)|(%d*)|(%d*)|([%d.]*)|(%x*)|(.*)$')
  local was = {
    state = state or 'Q',
    attempt = tonumber(attempt or 0),
    turn = tonumber(turn) or 0,
    began = began or '',
    ended = ended or '',
    due = due or '',
    token = token or '',
    worker = worker or '',
  }
  if string.byte(was.worker) == 9 then
    local suspicion, crashes, name = string.match(worker, '^\t(%d+)%+(%d+)\t(.*)$')
    if name then
      was.suspicion, was.crashes, was.worker = tonumber(suspicion), tonumber(crashes), name
    end
  end
  return was
end

local function status(root, id)
  return status_of(call('HGET', root .. ':state', id))
end

-- `marks` has the suspicion and the crashes of a job that may have them: of one that has not ended.
local function record(state, attempt, began, ended, due, token, worker, turn, marks)
  local count = turn > 0 and attempt .. '+' .. turn or attempt
  local suspicion, crashes = marks and marks.suspicion or 0, marks and marks.crashes or 0
  if suspicion > 0 or crashes > 0 or string.byte(worker) == 9 then
    worker = string.format('\t%d+%d\t', suspicion, crashes) .. worker
  end
  return table.concat({ state, count, began, ended, due, token, worker }, '|')
end

-- Nobody is told that a lease was lost by a server that has itself been deposed, and may have
-- forgotten: a replica refuses to write.
local function be_the_master()
  call('HSET', KEYS[1], 'at', now)
end

-- Wakes whoever sleeps on a queue, once per script.
local rung = {}
local function ring(root)
  if rung[root] then
    return
  end
  rung[root] = true
  if call('HDEL', root, 'bell') == 1 then
    call('PUBLISH', prefix .. ':bell', name_of(root) .. '|' .. caller)
  end
end

-- The same, if what they wait for is a place and not a job.
local function make_room(root)
  if call('HGET', root, 'bell') == 'limit' then
    ring(root)
  end
end

-- Lanes.

local function look_at(root, lane, band, moment)
  if not call('ZSCORE', root .. ':turn:' .. band, lane) then
    call('ZADD', root .. ':rest:' .. band, 'LT', moment, lane)
  end
end

-- Something moved in a lane that may have been shut.
local function touch(root, lane)
  for band = 0, 2 do
    if call('EXISTS', root .. ':lane:' .. lane .. ':' .. band) == 1 then
      look_at(root, lane, band, now)
    end
  end
  ring(root)
end

-- Keys with unique="latest". Of their jobs that have never started only the one accepted last may be
-- taken, and none while another of the key has started and not ended: that one is in root:keys.

-- One that waits for its children may die with them: it is passed over until they have ended.

local function newest_of(root, key)
  for _, id in ipairs(call('ZREVRANGE', root .. ':latest:' .. key, 0, MOST)) do
    if status(root, id).state ~= 'W' then
      return id
    end
  end
end

local function must_wait(root, id, job)
  if job.unique ~= 'l' then
    return false
  end
  local started = call('HGET', root .. ':keys', job.key)
  if started then
    return started ~= id
  end
  return (newest_of(root, job.key) or id) ~= id
end

local function behind_of(root, id, job)
  return job.unique == 'l' and call('ZSCORE', root .. ':behind', id)
end

-- Into and out of each state.

local function enter_due(root, id, job, moment, is_new)
  if must_wait(root, id, job) then
    call('ZADD', root .. ':behind', moment, id)
    return
  elseif job.lane == '' then
    call('ZADD', root .. ':due:' .. job.band, moment, id)
    local head = not is_new and call('HGET', root, 'head')
    if head then
      local came = call('ZSCORE', root .. ':all', id)
      if came and tonumber(came) < tonumber(head) then
        call('HSET', root, 'head', came)
      end
    end
  else
    call('ZADD', root .. ':lane:' .. job.lane .. ':' .. job.band, moment, id)
    call('ZADD', root .. ':laned', moment, id)
    look_at(root, job.lane, job.band, moment)
  end
  ring(root)
end

-- Out of the middle of a long list would take long: it is passed over when its turn comes.
local function leave_fresh(root, id, band)
  local list, gone = root .. ':fresh:' .. band, root .. ':gone'
  call('SADD', gone, id)
  for _ = 1, 10 * MOST do
    local head = call('LINDEX', list, 0)
    if not head or call('SREM', gone, head) == 0 then
      break
    end
    call('LPOP', list)
  end
end

-- When a queued job is, or was, due.
local function due_of(root, id, job)
  local behind = behind_of(root, id, job)
  if behind then
    return behind
  elseif job.lane ~= '' then
    return call('ZSCORE', root .. ':laned', id)
  end
  local moment = call('ZSCORE', root .. ':due:' .. job.band, id)
  local came = not moment and call('ZSCORE', root .. ':all', id)
  return came and string.format('%.4f', math.min(tonumber(came), at)) or moment
end

local function leave_due(root, id, job)
  if job.unique == 'l' and call('ZREM', root .. ':behind', id) == 1 then
    return
  elseif job.lane == '' then
    if call('ZREM', root .. ':due:' .. job.band, id) == 0 then
      leave_fresh(root, id, job.band)
    end
  else
    call('ZREM', root .. ':lane:' .. job.lane .. ':' .. job.band, id)
    call('ZREM', root .. ':laned', id)
  end
end

-- A later one of its key may be taken now: the one before it, if it could be taken, gives way.
local function give_way(root, before, id, key)
  if before and newest_of(root, key) == id and status(root, before).state == 'Q' then
    local job = facts(root, before)
    if not behind_of(root, before, job) then
      local moment = due_of(root, before, job)
      leave_due(root, before, job)
      call('ZADD', root .. ':behind', moment or at, before)
    end
  end
end

local function left_of(root, token)
  return tonumber(call('HGET', root .. ':left', token) or 0) or 0
end

-- Jobs that are taken together, under one token: what they share is written once.
local function enter_running(root, token, moment, ids)
  local left = left_of(root, token)
  call('HSET', root .. ':taken', token, cjson.encode(ids))
  call('HSET', root .. ':left', token, #ids)
  call('HINCRBY', root, 'running', #ids - left)
  call('ZADD', root .. ':claims', moment, token)
end

local function drop_claim(root, token)
  local left = left_of(root, token)
  call('HDEL', root .. ':taken', token)
  call('HDEL', root .. ':left', token)
  call('ZREM', root .. ':claims', token)
  if call('EXISTS', root .. ':claims') == 1 then
    call('HINCRBY', root, 'running', 0 - left)
  else
    call('HDEL', root, 'running') -- nobody is left to be counted, whatever was counted by mistake
  end
end

local function leave_claim(root, token, count)
  if left_of(root, token) > count then
    call('HINCRBY', root .. ':left', token, 0 - count)
    call('HINCRBY', root, 'running', 0 - count)
  else
    drop_claim(root, token)
  end
end

-- The ids that claims took, and under which token each. One edited by hand took none.
local function taken_by(root, tokens)
  local ids, whose = {}, {}
  for n, text in ipairs(read('HMGET', root .. ':taken', tokens)) do
    local good, taken = pcall(cjson.decode, text or '[]')
    for _, id in ipairs(good and type(taken) == 'table' and taken or {}) do
      if type(id) == 'string' then
        ids[#ids + 1], whose[#whose + 1] = id, tokens[n]
      end
    end
  end
  return ids, whose
end

-- The ids of those that claims took and that still run, and how they stand.
local function running_of(root, ...)
  local taken, whose = taken_by(root, { ... })
  local ids, standing = {}, {}
  for n, kept in ipairs(read('HMGET', root .. ':state', taken)) do
    local was = status_of(kept)
    if was.state == 'R' and was.token == whose[n] then
      ids[#ids + 1], standing[#standing + 1] = taken[n], was
    end
  end
  return ids, standing
end

local function count_running(root)
  return call('ZCARD', root .. ':leases') + (tonumber(call('HGET', root, 'running') or 0) or 0)
end

local function leave_running(root, id, job, was)
  if was.ended == '' then -- leased by an older version, and not yet adopted
    call('ZREM', root .. ':leases', id)
  else
    leave_claim(root, was.token, 1)
  end
  if job.lane ~= '' then
    if call('HINCRBY', root .. ':lanes', job.lane, -1) <= 0 then
      call('HDEL', root .. ':lanes', job.lane)
    end
    touch(root, job.lane)
  else
    make_room(root)
  end
end

local function leave_group(root, id)
  local print = call('HGET', root .. ':prints', id)
  if print then
    call('HDEL', root .. ':prints', id)
    call('ZREM', root .. ':group:' .. redis.sha1hex(print), id)
    if tonumber(call('ZINCRBY', root .. ':groups', -1, print)) <= 0 then
      call('ZREM', root .. ':groups', print)
    end
  end
end

local function leave_park(root, id)
  call('ZREM', root .. ':parked', id)
  local park = call('HGET', root .. ':parks', id)
  if park then
    call('ZREM', root .. ':park:' .. redis.sha1hex(park), id)
    call('HDEL', root .. ':parks', id)
  end
end

-- Until when those are kept that ended together, and their ids.
local function past_of(line)
  local expiry, ids = string.match(line or '', '^(%d+)(.*)$')
  return tonumber(expiry or 0), ids or ''
end

-- How many lines of done jobs are kept no longer than until a moment.
local function past_until(root, moment)
  local low, high = 0, call('LLEN', root .. ':past')
  while low < high do
    local middle = math.floor((low + high) / 2)
    if past_of(call('LINDEX', root .. ':past', middle)) <= moment then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- A line that nobody is left in goes once it is in front.
local function drop_empty(list)
  for _ = 1, 10 * MOST do
    local head = call('LINDEX', list, 0)
    if not head or string.find(head, ' ', 1, true) then
      break
    end
    call('LPOP', list)
  end
end

local function leave_done(root, id, job, was)
  if call('ZREM', root .. ':done', id) == 1 then
    return
  end
  local list = root .. ':past'
  local moment = (tonumber(was.ended) or 0) + job.keep
  local n = past_until(root, moment)
  while n > 0 do
    n = n - 1
    local expiry, ids = past_of(call('LINDEX', list, n))
    if expiry < moment then
      return
    end
    local start, last = string.find(ids, ' ' .. id, 1, true)
    if start then
      local others = string.sub(ids, 1, start - 1) .. string.sub(ids, last + 1)
      call('LSET', list, n, string.format('%d', expiry) .. others)
      call('HINCRBY', root, 'past', -1)
      if others == '' then
        drop_empty(list)
      end
      return
    end
  end
end

local function leave(root, id, job, was)
  if was.state == 'Q' then
    leave_due(root, id, job)
  elseif was.state == 'R' then
    leave_running(root, id, job, was)
  elseif was.state == 'W' then
    call('ZREM', root .. ':waiting', id)
    call('UNLINK', root .. ':pending:' .. id, root .. ':told:' .. id)
  elseif was.state == 'P' then
    leave_park(root, id)
  elseif was.state == 'H' then
    call('ZREM', root .. ':held', id)
  elseif was.state == 'D' then
    leave_done(root, id, job, was)
  elseif was.state == 'X' then
    call('ZREM', root .. ':dead', id)
    leave_group(root, id)
  elseif was.state == 'C' then
    call('ZREM', root .. ':cancelled', id)
  end
end

local function is_ended(state)
  return state == 'D' or state == 'X' or state == 'C'
end

-- One line of history; the last fifty stay.
local function remember(root, id, was, outcome, failure)
  local line = '{"n":' .. was.attempt .. ',"o":"' .. outcome .. '","b":'
    .. (was.began == '' and now or was.began) .. ',"e":' .. now
    .. ',"w":' .. cjson.encode(was.worker) .. (failure ~= '' and ',"f":' .. failure or '') .. '}'
  local past = call('HGET', root .. ':history', id)
  if past then
    line = past .. '\n' .. line
    local _, breaks = string.gsub(line, '\n', '\n')
    for _ = 50, breaks do
      line = string.sub(line, string.find(line, '\n', 1, true) + 1)
    end
  end
  call('HSET', root .. ':history', id, line)
end

-- Flows: what an ending means for the jobs that wait for it is done after all the endings.
local climbing = {}
local function climb(root, id, verdict)
  local edges = call('HGET', root .. ':before', id)
  for policy, parent, queue in string.gmatch(edges or '', '(%a) (%x+) (%S+)\n') do
    climbing[#climbing + 1] = { root, id, verdict, policy, parent, queue }
  end
end

-- Once no job of a key is between its start and its end, the one accepted last goes on.
local function advance(root, key)
  local id = call('HEXISTS', root .. ':keys', key) == 0 and newest_of(root, key)
  local moment = id and call('ZSCORE', root .. ':behind', id)
  if moment then
    call('ZREM', root .. ':behind', id)
    enter_due(root, id, facts(root, id), moment)
  end
end

-- The job has ended: its key is free, its lane goes on, those that wait for it hear of it.
local function conclude(root, id, job, verdict)
  if job.key ~= '' then
    if call('HGET', root .. ':keys', job.key) == id then
      call('HDEL', root .. ':keys', job.key)
    end
    if job.unique == 'l' then
      call('ZREM', root .. ':latest:' .. job.key, id)
      call('ZADD', root .. ':quiet', now, job.key)
      advance(root, job.key)
    end
    if job.unique == 'f' then
      call('HSET', root .. ':ever', job.key, (verdict == 'D' and 'D' or 'X') .. id)
    end
  end
  if job.lane ~= '' then
    call('ZREM', root .. ':line:' .. job.lane, id)
    if call('EXISTS', root .. ':line:' .. job.lane) == 1 then
      touch(root, job.lane)
    else
      for band = 0, 2 do
        call('ZREM', root .. ':turn:' .. band, job.lane)
        call('ZREM', root .. ':rest:' .. band, job.lane)
      end
    end
  else
    make_room(root)
  end
  climb(root, id, verdict)
end

local function bury(root, id, job, was, print)
  call('HSET', root .. ':state', id,
    record('X', was.attempt, was.began, now, was.due, was.token, was.worker, was.turn))
  call('ZADD', root .. ':dead', now, id)
  call('HSET', root .. ':prints', id, print)
  call('ZADD', root .. ':group:' .. redis.sha1hex(print), now, id)
  call('ZINCRBY', root .. ':groups', 1, print)
  conclude(root, id, job, 'X')
end

local function cancel(root, id, job, was)
  call('HSET', root .. ':state', id,
    record('C', was.attempt, was.began, now, was.due, '', was.worker, was.turn))
  call('ZADD', root .. ':cancelled', now, id)
  if not is_ended(was.state) then
    conclude(root, id, job, 'C')
  end
end

local function requeue(root, id, job, was, attempt, moment)
  call('HSET', root .. ':state', id,
    record('Q', attempt, '', '', string.format('%.4f', moment), '', '', was.turn, was))
  enter_due(root, id, job, moment)
end

-- A child of a waiting parent has ended. Counted once, by its id. The verdict '-' is that of a member
-- which another job turned out to stand for.
local function release(root, parent, child, queue, verdict, policy)
  local was = status(root, parent)
  if was.state ~= 'W' or call('SADD', root .. ':told:' .. parent, child) == 0 then
    return
  end
  local had = call('SREM', root .. ':pending:' .. parent, child)
  if verdict == '-' then
    local grown = call('HGET', root .. ':grown', parent) or ''
    local start, last = string.find(grown, policy .. ' ' .. child .. '\n', 1, true)
    if start then
      call('HSET', root .. ':grown', parent,
        string.sub(grown, 1, start - 1) .. string.sub(grown, last + 1))
    end
  end
  if policy == 't' and child ~= parent then
    if verdict == '-' then
      call('HINCRBY', root .. ':tally:' .. parent, 'members', 0 - had)
    else
      call('HINCRBY', root .. ':tally:' .. parent, 'members', 1 - had)
      call('HINCRBY', root .. ':tally:' .. parent, verdict, 1)
    end
  end
  local job = facts(root, parent)
  if verdict ~= '-' and verdict ~= 'D' and policy == 'f' then
    leave(root, parent, job, was)
    local word = verdict == 'X' and 'died' or 'was cancelled'
    remember(root, parent, was, 'child', '{"type":"ChildFailed","message":"its child ' .. child
      .. ' of ' .. queue .. ' ' .. word .. '","fingerprint":"ChildFailed"}')
    bury(root, parent, job, was, 'ChildFailed')
  elseif call('SCARD', root .. ':pending:' .. parent) == 0 then
    leave(root, parent, job, was)
    local due = tonumber(was.due) or 0
    local before = job.unique == 'l' and newest_of(root, job.key)
    if was.attempt == 0 and was.turn == 0 then
      call('HDEL', root .. ':state', parent)
      give_way(root, before, parent, job.key)
      enter_due(root, parent, job, math.max(at, due))
    else
      requeue(root, parent, job, was, was.attempt, math.max(at, due))
    end
  end
end

-- Carries endings to the parents, and on to theirs. Parents on other slots cannot be reached from
-- here: those releases are written down and answered, for the caller to carry.
local function climb_all()
  local out = {}
  local n = 1
  while climbing[n] do
    local root, child, verdict, policy, parent, queue = unpack(climbing[n])
    local above = root_of(queue)
    if together or above == root then
      release(above, parent, child, name_of(root), verdict, policy)
    else
      call('HSET', root .. ':out', child .. ' ' .. parent,
        verdict .. ' ' .. policy .. ' ' .. queue)
      out[#out + 1] = { name_of(root), child, verdict, policy, parent, queue }
    end
    n = n + 1
  end
  return out
end

-- Ties a child to a parent that waits for it; answers how the child ended, if it has. A child that
-- is not there has been done and not kept.
local function tie(root, child, policy, parent, queue)
  if call('HEXISTS', root .. ':jobs', child) == 0 then
    return 'D'
  end
  local edges = call('HGET', root .. ':before', child) or ''
  if not string.find(edges, ' ' .. parent .. ' ', 1, true) then
    call('HSET', root .. ':before', child, edges .. policy .. ' ' .. parent .. ' ' .. queue .. '\n')
  end
  local state = status(root, child).state
  return is_ended(state) and state or nil
end

-- Another job stands for a child that a parent came in with.
local function stand_in(root, parent, child, holder)
  local grown = call('HGET', root .. ':grown', parent) or ''
  local line = '=' .. child .. ':' .. holder .. '\n'
  if not string.find(grown, line, 1, true) then
    call('HSET', root .. ':grown', parent, grown .. line)
  end
end

-- Ids that answer though their jobs are gone, or never were. A full server refuses this but behind what
-- makes room.
local function remember_ids(root, ids, length)
  local kept = {}
  for n, id in ipairs(ids) do
    kept[2 * n - 1], kept[2 * n] = string.format('%d', now + length), id
  end
  many('ZADD', root .. ':remembered', kept)
end

-- What a job has beside the sets it is in.
local function remove_rows(root, ids)
  for _, part in ipairs({ ':jobs', ':state', ':history', ':results', ':notes', ':before', ':joins',
    ':grown' }) do
    many('HDEL', root .. part, ids)
  end
  many('ZREM', root .. ':all', ids)
  if call('EXISTS', root .. ':tallies') == 1 then
    many('ZREM', root .. ':tallies', ids)
    for _, id in ipairs(ids) do
      call('UNLINK', root .. ':tally:' .. id)
    end
  end
end
