-- Writes down a bundle before its parts go to their places, or takes it off again.
-- KEYS  the root of its first queue
-- ARGV  4 its name, 5 the jobs, packed; '' when all are in their places

if ARGV[5] == '' then
  return call('HDEL', KEYS[1] .. ':bundles', ARGV[4])
end
return call('HSET', KEYS[1] .. ':bundles', ARGV[4], now .. '|' .. ARGV[5])
