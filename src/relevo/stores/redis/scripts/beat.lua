-- Shows that a worker is alive.
-- KEYS  the hash of workers
-- ARGV  4 id, 5 for how long, 6 the worker, 7 '1' if the server's health is to be told
-- Answers INFO, or ''.

call('HSET', KEYS[1], ARGV[4], table.concat({ now, now + ARGV[5], ARGV[6] }, '|'))
if ARGV[7] ~= '1' then
  return ''
end
-- Not call: who may not ask is told so when the store is opened, not here.
local memory, disk = redis.pcall('INFO', 'memory'), redis.pcall('INFO', 'persistence')
return type(memory) == 'string' and type(disk) == 'string' and memory .. disk or ''
