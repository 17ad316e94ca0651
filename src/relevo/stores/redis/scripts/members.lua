-- Tying a job to a parent that waits already; put in front of the scripts that do.

-- Whether a parent takes a job that `asker` caused: an open group takes any, any other parent what its
-- live children add.
local function may_join(root, parent, asker)
  if status(root, parent).state ~= 'W' then
    return false
  end
  local gate = call('HGET', root .. ':tally:' .. parent, 'gate')
  if gate == '0' then
    return true
  end
  return gate ~= '2' and asker ~= ''
    and call('SISMEMBER', root .. ':pending:' .. parent, asker) == 1
end

-- The parent waits for the child from now on, unless it has heard of its end; false if it has.
local function wait_for(root, parent, child, policy)
  if call('SISMEMBER', root .. ':told:' .. parent, child) == 1 then
    return false
  end
  if call('SADD', root .. ':pending:' .. parent, child) == 1 then
    if policy == 't' then
      call('HINCRBY', root .. ':tally:' .. parent, 'members', 1)
    else
      local grown = call('HGET', root .. ':grown', parent) or ''
      call('HSET', root .. ':grown', parent, grown .. policy .. ' ' .. child .. '\n')
    end
  end
  return true
end
