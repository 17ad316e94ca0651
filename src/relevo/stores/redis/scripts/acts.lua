-- What people do; put in front of the scripts by which they do it.

-- One line of the audit, in the slot of what was changed.
local function audit(root, who, note, verb, target, before, after)
  if who == '' then -- a part of a decision, which was written down before
    return
  end
  call('XADD', root .. ':audit', '*', 'at', now, 'who', who, 'verb', verb, 'target', target,
    'note', note, 'before', before, 'after', after)
end
