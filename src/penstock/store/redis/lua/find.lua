-- find: a page of tasks in id order, of the states asked for, those past their ttl left out.
-- ARGV: now, states, after, most, how many ids to look at
-- Answer: now, the last id looked at, the last id given, number of tasks stored, id, record, …
-- KEYS: meta tasks
-- WITH: moment record decode
-- FLAGS: no-writes
local last = tonumber(redis.call('HGET', k_meta, 'last'))
if not last then return { -1 } end
local id, most = tonumber(ARGV[3]), tonumber(ARGV[4])
local top = math.min(last, id + tonumber(ARGV[5]))
local answer = { now, 0, last, redis.call('HLEN', k_tasks) }
while id < top and #answer < 4 + 2 * most do
  local keys = {}
  for i = 1, math.min(100, top - id) do keys[i] = key_of(id + i) end
  for i, value in ipairs(redis.call('HMGET', k_tasks, unpack(keys))) do
    id = id + 1
    if value and string.find(ARGV[2], string.sub(value, 1, 1), 1, true) and #answer < 4 + 2 * most then
      local rec = decode(value)
      if rec and (rec.state == 't' or not rec.expires or rec.expires > now) then
        answer[#answer + 1] = id
        answer[#answer + 1] = value
      end
    end
  end
end
answer[2] = id
return answer
