-- What people did, newest first.
-- KEYS  the roots; beside each :audit
-- ARGV  4 how many, 5 '1' if only target 6 is meant, then for each root where to start
-- Answers for each root: some rows, rank and fields, and the rank it got to, '' at the end.

local most, only, target = tonumber(ARGV[4]), ARGV[5] == '1', ARGV[6]
local answer = {}
for n, root in ipairs(KEYS) do
  local found, reached = {}, ''
  local from = ARGV[6 + n] == '' and '+' or ARGV[6 + n]
  local rows = call('XREVRANGE', root .. ':audit', from, '-', 'COUNT', MOST)
  for place, row in ipairs(rows) do
    local mine = not only
    for i = 1, #row[2], 2 do
      mine = mine or row[2][i] == 'target' and row[2][i + 1] == target
    end
    if mine then
      found[#found + 1] = row
    end
    if #found == most or place == MOST then
      reached = (place < #rows or #rows == MOST) and row[1] or ''
      break
    end
  end
  answer[n] = { found, reached }
end
return answer
