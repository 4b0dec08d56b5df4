-- Part: hand-outs of tubes that lease nothing, whole batches in few commands.
if clocked then top = clock_limit() end

-- Hand out up to so many of what stands at these places of the ready index.
local function hand_batch(names, values, most)
  local keys, recs, out = {}, {}, {}
  for i, name in ipairs(names) do
    if #keys == most then break end
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
end

lease = function(wanted)
  while #leased < 2 * wanted and may_skip() do
    local most = math.min(wanted - #leased / 2, 1000)
    local names = candidates(most)
    if #names == 0 then break end
    hand_batch(names, redis.call('HMGET', k_tasks, unpack(names)), most)
  end
  if not clocked then count('taken', #leased / 2) end
end
