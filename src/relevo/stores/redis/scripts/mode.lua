-- Pauses, drains or opens queues.
-- KEYS  the roots of the queues
-- ARGV  4 who, 5 why, 6 the mode
-- Answers 1 for each, or 0 where it was so already.

local mode = ARGV[6]
local verbs = { paused = 'pause', draining = 'drain', open = 'resume' }
local answer = {}
for n, root in ipairs(KEYS) do
  local was = call('HGET', root, 'mode') or 'open'
  answer[n] = was ~= mode and 1 or 0
  if was ~= mode then
    call('HSET', root, 'mode', mode, 'bell', 'due')
    register(root)
    audit(root, ARGV[4], ARGV[5], verbs[mode], name_of(root), was, mode)
    ring(root)
  end
end
return answer
