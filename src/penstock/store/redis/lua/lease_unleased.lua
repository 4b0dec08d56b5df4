-- Part: hand-outs of tubes that lease nothing, whole batches in few commands.
if clocked then top = clock_limit() end

-- Hand out what stands at these places of the ready index; how many were passed over.
local function hand_batch(names, values)
  local keys, recs, out, passed = {}, {}, {}, 0
  for i, name in ipairs(names) do
    local rec = values[i] and decode(values[i])
    if rec and expired(rec) then
      passed = passed + 1
    elseif rec then
      keys[#keys + 1], recs[#recs + 1] = name, rec
    end
    if not rec or (not clocked and not expired(rec)) then out[#out + 1] = name end
  end
  if #out > 0 then redis.call('ZREM', k_ready, unpack(out)) end
  hand_over(keys, recs, leased)
  return passed
end

lease = function(wanted)
  local passed = 0
  while #leased < 2 * wanted and passed <= 1000 do
    local names = candidates(passed, math.min(wanted - #leased / 2, 1000))
    if #names == 0 then break end
    passed = passed + hand_batch(names, redis.call('HMGET', k_tasks, unpack(names)))
  end
  if not clocked then count('taken', #leased / 2) end
end
