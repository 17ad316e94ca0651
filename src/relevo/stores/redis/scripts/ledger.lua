-- Effects; put in front of the scripts that keep, find and remove them.

-- An effect in the indexes: the length of its job's name, the job, its own name.
local function member_of(job, name)
  return #job .. ' ' .. job .. name
end

local function parts_of(member)
  local length, start = string.match(member, '^(%d+) ()')
  return string.sub(member, start, start + length - 1), string.sub(member, start + length)
end

local function remove_effect(root, job, name)
  call('HDEL', root .. ':effects:' .. redis.sha1hex(job), name)
  call('ZREM', root .. ':effects', member_of(job, name))
  call('ZREM', root .. ':concluded', member_of(job, name))
end

-- What ids answer whose jobs are gone, or that joined another.
