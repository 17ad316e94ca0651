-- What waiting parents wait for; nothing happens to one tied already.
-- KEYS  the roots of the parents' queues
-- ARGV  4 for each: queue (number of its key), parent, child

for n = 4, #ARGV, 3 do
  local pending = KEYS[tonumber(ARGV[n])] .. ':pending:' .. ARGV[n + 1]
  local told = KEYS[tonumber(ARGV[n])] .. ':told:' .. ARGV[n + 1]
  if call('SISMEMBER', pending, '*') == 1 and call('SISMEMBER', told, ARGV[n + 2]) == 0 then
    call('SADD', pending, ARGV[n + 2])
  end
end
return 1
