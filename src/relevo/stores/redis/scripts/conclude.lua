-- Writes how effects ended. A confirmed one stays so, with its result; any other is written by its
-- own run, by one that follows that, and by a person. What a late run has confirmed is a fact, too.
-- KEYS  the roots of the queues; beside each :effects, :effects:…, :concluded (when)
-- ARGV  4 who decides, '' if nobody, 5 why, then for each: queue (number of its key), job, name,
--       state, hash of the result, what is searched (key and result), effect, the run that it
--       follows (JSON, or '')
-- Answers 1 or 0 for each.

-- The key and the run in an effect, as JSON: within a text the quotes would be escaped.
local function key_and_run(effect)
  return string.match(effect, '"key":(".-"),"state":'), string.match(effect, '"run":(".-"),"thread":')
end

local STATES = { I = 'intended', C = 'confirmed', R = 'refused', F = 'failed', U = 'unknown' }

local who, note = ARGV[4], ARGV[5]
local answer = {}
for n = 6, #ARGV, 8 do
  local root, job, name = KEYS[tonumber(ARGV[n])], ARGV[n + 1], ARGV[n + 2]
  local state, hash = ARGV[n + 3], ARGV[n + 4]
  local key = root .. ':effects:' .. redis.sha1hex(job)
  local kept = call('HGET', key, name)
  local was, created, stored, size, at_text = string.match(
    kept or '', '^(%u)|([%d.]+)|%d+|([^|]*)|(%d+)|()')
  -- A person may tell the result of which nothing could be kept, or mend what a person told.
  local is_told = was == 'C' and who ~= '' and state == 'C' and hash ~= '-' and (stored == '-'
    or string.find(kept, '"decided_by":"[^"]', at_text + tonumber(size)) ~= nil)
  local is_late = false
  if was and was ~= 'C' and who == '' then
    local key_was, run_was = key_and_run(string.sub(kept, at_text + tonumber(size)))
    local key_now, run_now = key_and_run(ARGV[n + 6])
    is_late = run_was ~= run_now and run_was ~= ARGV[n + 7]
      and not (state == 'C' and (key_was == key_now or (was ~= 'I' and was ~= 'U')))
  end
  if was == 'C' and not is_told then
    answer[#answer + 1] = state == 'C' and stored == hash and 1 or 0
  elseif is_late then
    answer[#answer + 1] = 0
  elseif not was and who ~= '' then
    answer[#answer + 1] = 0
  else
    created = created or string.format('%.4f', at + n / 16384)
    call('HSET', key, name, table.concat({ state, created, now, hash, #ARGV[n + 5],
      ARGV[n + 5] .. ARGV[n + 6] }, '|'))
    call('ZADD', root .. ':effects', created, member_of(job, name))
    if state == 'I' then
      call('ZREM', root .. ':concluded', member_of(job, name))
    else
      call('ZADD', root .. ':concluded', now, member_of(job, name))
    end
    if who ~= '' then
      audit(root, who, note, state == 'C' and 'confirm' or 'deny', job .. '/' .. name,
        STATES[was], STATES[state])
    end
    answer[#answer + 1] = 1
  end
end
return answer
