-- inspect: messages from a place on, of the undelivered or the delivered, in their order; a negative one counts from the end.
-- ARGV: start, count, 1: the delivered
-- Answer: 0, id, record, …
-- KEYS: meta tasks ready delivered
-- WITH: record decode
-- FLAGS: no-writes
if redis.call('HEXISTS', k_meta, 'last') == 0 then return { -1 } end
local list = ARGV[3] == '1' and k_delivered or k_ready
local start, total, answer = tonumber(ARGV[1]), redis.call('ZCARD', list), { 0 }
if start < 0 then start = start + total end
local stop = start < 0 and start or math.min(start + tonumber(ARGV[2]), total)
for from = start, stop - 1, 1000 do
  local keys = redis.call('ZRANGE', list, from, math.min(from + 1000, stop) - 1)
  for i, value in ipairs(redis.call('HMGET', k_tasks, unpack(keys))) do
    if value and decode(value) then
      answer[#answer + 1] = id_of(keys[i])
      answer[#answer + 1] = value
    end
  end
end
return answer
