-- What is kept no longer; put in front of the scripts by which it goes.

-- Takes jobs that have ended out of the set they ended in, with all they have; root:ever stays.
local function remove_jobs(root, set, ids, blobs)
  local lengths = {}
  for n, blob in ipairs(blobs or read('HMGET', root .. ':jobs', ids)) do
    local length = blob and facts_of(blob).remember or 0
    if length > 0 then
      lengths[length] = lengths[length] or {}
      table.insert(lengths[length], ids[n])
    end
  end
  if set == ':dead' then
    for _, id in ipairs(ids) do
      leave_group(root, id)
    end
  end
  remove_rows(root, ids)
  many('ZREM', root .. set, ids)
  for length, some in pairs(lengths) do
    remember_ids(root, some, length)
  end
end
