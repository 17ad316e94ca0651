-- Shows that workers have lost their jobs: silent until they beat again, or gone.
-- KEYS  the hash of workers
-- ARGV  4 '1' if their processes are known to be dead, then their ids

local key, is_gone = KEYS[1], ARGV[4] == '1'
for n = 5, #ARGV do
  local beat, till, info = string.match(call('HGET', key, ARGV[n]) or '', '^([^|]*)|(%d+)|(.*)$')
  if beat then
    if is_gone then
      -- Within a text the quotes would be escaped.
      info = string.gsub(info, '"state":"%l+"', '"state":"gone"', 1)
    end
    till = string.format('%d', math.min(tonumber(till), now))
    call('HSET', key, ARGV[n], table.concat({ beat, till, info }, '|'))
  end
end
return 0
