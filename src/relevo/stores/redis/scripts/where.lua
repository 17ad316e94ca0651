-- Which queue has which job, or remembers its id.
-- KEYS  the roots of the queues
-- ARGV  4 the ids …
-- Answers queue and id of each that was found.

local answer = {}
for _, root in ipairs(KEYS) do
  for n = 4, #ARGV do
    if call('HEXISTS', root .. ':jobs', ARGV[n]) == 1
      or call('ZSCORE', root .. ':remembered', ARGV[n]) then
      answer[#answer + 1] = { name_of(root), ARGV[n] }
    end
  end
end
return answer
