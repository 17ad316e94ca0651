-- Removes ended jobs by a person's word, and the effects of those and of jobs that are gone.
-- KEYS  the roots of the queues
-- ARGV  4 who, 5 why, 6 what the audit calls it, 7 how many jobs, their ids, then deliveries' ids:
--       those, and the line in the audit, only where all slots are here
-- Answers how many jobs, effects and deliveries.

local sets = { D = ':done', X = ':dead', C = ':cancelled' }
local jobs, deliveries = {}, {}
for n = 8, #ARGV do
  local some = n < 8 + ARGV[7] and jobs or deliveries
  some[#some + 1] = ARGV[n]
end
local removed, effects, shed = 0, 0, 0

local function erase(root)
  local ended = {}
  for _, id in ipairs(jobs) do
    local is_here = call('HEXISTS', root .. ':jobs', id) == 1
    local was = status(root, id)
    local set = is_here and sets[was.state]
    if set then
      if was.state == 'D' then
        leave_done(root, id, facts(root, id), was)
      end
      ended[set] = ended[set] or {}
      table.insert(ended[set], id)
    end
    for _, name in ipairs((set or not is_here) and call('HKEYS', root .. ':effects:'
      .. redis.sha1hex(id)) or {}) do
      remove_effect(root, id, name)
      effects = effects + 1
    end
  end
  for set, ids in pairs(ended) do
    remove_jobs(root, set, ids)
    removed = removed + #ids
  end
end

if KEYS[1] then
  be_the_master()
end
for _, root in ipairs(KEYS) do
  erase(root)
end
if together then
  for _, hook in ipairs(call('HKEYS', prefix .. ':hooks')) do
    shed = shed + erase_deliveries(root_of(hook), deliveries)
  end
  if removed + effects + shed > 0 then
    audit(prefix .. ':{audit}', ARGV[4], ARGV[5], 'forget', ARGV[6], '', '')
  end
end
return { removed, effects, shed }
