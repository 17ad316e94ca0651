-- The ledger, newest first.
-- KEYS  the roots of the queues; beside each :effects and :effects:…
-- ARGV  4 how many, 5 '' or a job, 6 '' or letters of states, 7 '1' if 8 must be found in key or
--       result, 9 '' or threads, each between quotes as JSON writes it, then for each queue where to
--       start
-- Answers for each queue: some rows, rank and effect as intend.lua answers it, and the rank it got
-- to, '' at the end.

local most, job, letters = tonumber(ARGV[4]), ARGV[5], ARGV[6]
local only, text, threads = ARGV[7] == '1', ARGV[8], ARGV[9]

local function fits(kept)
  if not kept or letters ~= '' and not string.find(letters, string.sub(kept, 1, 1), 1, true) then
    return false
  end
  if not only and threads == '' then
    return true
  end
  local length, start = string.match(kept, '^%u|[%d.]+|%d+|[^|]*|(%d+)|()')
  if threads ~= '' then
    -- What is cut short at a quote inside the name is looked at more closely by the caller.
    local thread = string.match(kept, '"thread":("[^"]*")', start + length)
    if not thread or not string.find(threads, thread, 1, true) then
      return false
    end
  end
  return not only or string.find(string.sub(kept, start, start + length - 1), text, 1, true)
end

local answer = {}
for n, root in ipairs(KEYS) do
  local found, reached = {}, ''
  local from = ARGV[9 + n] == '' and '+inf' or ARGV[9 + n]
  if job ~= '' then
    local bound = from == '+inf' and math.huge or tonumber(string.match(from, '[%d.]+'))
    local past = string.sub(from, 1, 1) == '('
    for _, name in ipairs(call('HKEYS', root .. ':effects:' .. redis.sha1hex(job))) do
      local rank = call('ZSCORE', root .. ':effects', member_of(job, name))
      local kept = call('HGET', root .. ':effects:' .. redis.sha1hex(job), name)
      local score = tonumber(rank or math.huge)
      if fits(kept) and (score < bound or score == bound and not past) then
        found[#found + 1] = { rank, kept }
      end
    end
    table.sort(found, function(a, b)
      return tonumber(a[1]) > tonumber(b[1])
    end)
  else
    local rows = call('ZREVRANGEBYSCORE', root .. ':effects', from, '-inf',
      'WITHSCORES', 'LIMIT', 0, MOST)
    for i = 1, #rows, 2 do
      local id, name = parts_of(rows[i])
      local kept = id and call('HGET', root .. ':effects:' .. redis.sha1hex(id), name)
      if fits(kept) then
        found[#found + 1] = { rows[i + 1], kept }
      end
      if #found == most or i + 1 == 2 * MOST then
        reached = i + 1 < #rows and rows[i + 1] or #rows == 2 * MOST and rows[i + 1] or ''
        break
      end
    end
  end
  answer[n] = { found, reached }
end
return answer
