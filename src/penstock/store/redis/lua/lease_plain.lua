-- Part: hand-outs of tubes without micro-queues, whole batches in few commands.
local function lease_batch(members, values, wanted, session)
  local ready, tasks, taken, due, undue, passed = {}, {}, {}, {}, {}, 0
  for i, name in ipairs(members) do
    if #leased == 2 * wanted then break end
    local key = key_in(name)
    local rec = readable(key, values[i])
    local left_alone = rec and gone(rec)
    if left_alone then
      passed = passed + 1
    else
      ready[#ready + 1] = name
    end
    if rec and not left_alone then
      local timer = rec.at
      rec.state = 't'
      hand_out(key, rec, session)
      local value = encode(rec)
      tasks[#tasks + 1] = key
      tasks[#tasks + 1] = value
      taken[#taken + 1] = session
      taken[#taken + 1] = key
      leased[#leased + 1] = id_of(key)
      leased[#leased + 1] = value
      if rec.at then
        due[#due + 1] = rec.at
        due[#due + 1] = key
      elseif timer then
        undue[#undue + 1] = key
      end
    end
  end
  if #ready > 0 then redis.call('ZREM', k_ready, unpack(ready)) end
  if #tasks > 0 then
    redis.call('HSET', k_tasks, unpack(tasks))
    redis.call('ZADD', k_taken, unpack(taken))
  end
  if #due > 0 then redis.call('ZADD', k_due, unpack(due)) end
  if #undue > 0 then redis.call('ZREM', k_due, unpack(undue)) end
  return passed
end

lease = function(wanted, session)
  local passed = 0
  while #leased < 2 * wanted and passed <= 1000 do
    local members = candidates(passed, math.min(wanted - #leased / 2, 1000))
    if #members == 0 then break end
    local keys = {}
    for i, name in ipairs(members) do keys[i] = key_in(name) end
    passed = passed + lease_batch(members, redis.call('HMGET', k_tasks, unpack(keys)), wanted, session)
  end
  count('taken', #leased / 2)
end
