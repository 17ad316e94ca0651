-- Tells which deliveries are kept already, or keeps those that are not, all in this one step.
-- KEYS  the roots of the sources
-- ARGV  4 'ask' or 'keep', then for each
--         ask:  source (number of its key), hash of its key or '', generation, hash of what is
--               compared
--         keep: the same and id, letter of its state, '' or the moment it came, hash of its thread or
--               '', what is in front of the moment in its row and what is behind, body, hash of the
--               key of a refused one or ''
-- Answers for each its row if it was here before, which counts as a repeat, and 1 if the body is
-- another; else '' or, if it is kept now, the moment it came.

local keeps = ARGV[4] == 'keep'
local width = keeps and 12 or 4
local answer = {}
for n = 5, #ARGV, width do
  answer[#answer + 1] = receive(n, keeps)
end
return answer
