-- Part: how many tasks the tube held when this step began.
local function total()
  local gone = redis.call('HMGET', k_meta, 'ack', 'fail', 'delete', 'ttl', 'skipped')
  return head[1] - (gone[1] or 0) - (gone[2] or 0) - (gone[3] or 0) - (gone[4] or 0) - (gone[5] or 0)
end
