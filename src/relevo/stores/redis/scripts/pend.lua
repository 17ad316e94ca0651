-- What waiting parents wait for; nothing happens to one tied already.
-- KEYS  the roots of the parents' queues
-- ARGV  4 for each: queue (number of its key), parent, child, the job that stands for it

for n = 4, #ARGV, 4 do
  local root, parent, child, holder = KEYS[tonumber(ARGV[n])], unpack(ARGV, n + 1, n + 3)
  if child ~= holder then
    stand_in(root, parent, child, holder)
  end
  local pending, told = root .. ':pending:' .. parent, root .. ':told:' .. parent
  if call('SISMEMBER', pending, '*') == 1 and call('SISMEMBER', told, holder) == 0 then
    call('SADD', pending, holder)
  end
end
return 1
