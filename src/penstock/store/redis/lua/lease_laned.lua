-- Part: hand-outs of micro-queue tubes, one by one, because each decides who may come next.
local function lease_one(key, rec, session)
  local timer = rec.at
  leave(key, rec)
  rec.state = 't'
  hand_out(key, rec, session)
  moved(key, rec, 'r')
  save(key, rec)
  set_timer(key, timer, rec.at)
  enter(key, rec)
  leased[#leased + 1] = id_of(key)
  leased[#leased + 1] = encode(rec)
end

lease = function(wanted, session)
  while #leased < 2 * wanted and may_skip() do
    local names = candidates(1)
    if #names == 0 then break end
    for _, name in ipairs(names) do
      local key = key_in(name)
      local rec = fetch(key)
      local skips, leaves
      if rec then skips, leaves = skipped(rec) end
      if not rec or leaves then
        redis.call('ZREM', k_ready, name)
      elseif not skips then
        lease_one(key, rec, session)
        break -- it decides who comes next
      end
    end
  end
end
