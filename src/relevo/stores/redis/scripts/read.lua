-- Jobs by their ids.
-- KEYS  the roots of the queues to look in
-- ARGV  4 the ids …
-- Answers now, and for each found: queue, id, blob, record, moment (when due, or until when leased),
-- history, result, note, park, edges to those that wait for it, who joined it, what it waits for
-- beside what it came in with.

local ids = {}
for n = 4, #ARGV do
  ids[#ids + 1] = ARGV[n]
end
local answer = {}
for _, root in ipairs(KEYS) do
  for n, blob in ipairs(read('HMGET', root .. ':jobs', ids)) do
    if blob then
      answer[#answer + 1] = row(root, ids[n], blob, true)
    end
  end
end
return { now, answer }
