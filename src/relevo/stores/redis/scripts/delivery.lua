-- Deliveries by their ids; pruned ones have no body any more.
-- KEYS  the roots of the sources to look in
-- ARGV  4 the ids …
-- Answers the rows of those found.

local answer = {}
for _, root in ipairs(KEYS) do
  for n = 4, #ARGV do
    if call('HEXISTS', root .. ':bodies', ARGV[n]) == 1 then
      answer[#answer + 1] = delivery_of(root, ARGV[n], true)
    end
  end
end
return answer
