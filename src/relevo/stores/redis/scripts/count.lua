-- How many jobs are parked behind something, or are dead of one mistake.
-- KEYS  the roots of the queues
-- ARGV  4 'park' or 'group', 5 its name, 6 '' or the only queue meant
-- Answers how many.

local found = 0
for _, root in ipairs(KEYS) do
  if ARGV[6] == '' or ARGV[6] == name_of(root) then
    found = found + call('ZCARD', root .. ':' .. ARGV[4] .. ':' .. redis.sha1hex(ARGV[5]))
  end
end
return found
