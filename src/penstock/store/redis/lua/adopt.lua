-- adopt: store tasks and outcomes that come from elsewhere; tasks up to the last id are here already.
-- ARGV: now, shape, limit, facts or '', up to which id all are here now, tasks: msgpack [[id, state, rank1, rank2, pri, utube,
--   attempts, lease, created, taken, expires, at, ttr, max_attempts, reason, callback, address, reply_to, group, its number],
--   …], outcomes: msgpack [[id, address, status, error, code, until, has a result], …], data, …, results, …
-- Answer: now
-- `skipped` of meta: ids that were done elsewhere.
-- WITH: moment base record decode step lifecycle links unleased?
local tasks, outcomes = cmsgpack.unpack(ARGV[6]), cmsgpack.unpack(ARGV[7])
local before, stored, place = last, 0, 7
if ARGV[4] ~= '' and not head[5] then
  head[5] = ARGV[4]
  redis.call('HSET', k_meta, 'facts', head[5])
end

local function adopted(of, payload)
  return {
    state = of[2], rank1 = of[3], rank2 = of[4], pri = of[5], utube = of[6], attempts = of[7], lease = of[8],
    created = of[9], taken = of[10], expires = of[11], at = of[12], ttr = of[13], max = of[14], reason = of[15],
    callback = of[16], address = of[17], reply_to = of[18], group = of[19], group_no = of[20], payload = payload,
  }
end

for i, of in ipairs(tasks) do
  place = place + 1
  if of[1] > before then
    local rec = adopted(of, ARGV[place])
    last, stored = of[1], stored + 1
    if rec.reply_to then redis.call('HSETNX', k_meta, 'posted', 0) end
    if rec.address or rec.group_no then arrived(key_of(last), rec, rec.group_no and group_of(rec.group_no)) end
    -- It stands for a ready one, see penstock.store.moving.
    if rec.state == '~' and rec.at <= rec.created then count('delay', -1) end
    add(rec)
  end
end

for _, of in ipairs(outcomes) do
  local key, address, ending = key_of(of[1]), of[2], { status = of[3], error = of[4], code = of[5] }
  if of[7] then
    place = place + 1
    ending.result = ARGV[place]
  end
  keep(key, address, ending, of[6])
  local newest = redis.call('HGET', k_addresses, address)
  if not newest or newest < key then redis.call('HSET', k_addresses, address, key) end
end

last = math.max(last, tonumber(ARGV[5]))
count('skipped', last - before - stored)
save_groups()
save_last()
finish()
return { now }
