-- outbox: replies that were left behind on their way to other tubes, in order, above a number. Those that the tasks of a
-- dropped tube leave are made first, some at a time.
-- ARGV: now, number, 1: all, not just those left behind
-- Answer: now, 1 while replies are still to be made, 2 when the tube is gone and so are all its replies, else 0, letter, …
-- KEYS: meta tasks outbox
-- WITH: moment record decode replies
-- FLAGS: allow-oom
local ghost = redis.call('HGET', k_meta, 'ghost')
if ghost then
  local ids, facts = {}, cmsgpack.unpack(redis.call('HGET', k_meta, 'facts'))
  for i, key in ipairs(redis.call('HSCAN', k_tasks, 0, 'COUNT', 500)[2]) do
    if i % 2 == 1 then ids[#ids + 1] = id_of(key) end
  end
  table.sort(ids)
  for _, id in ipairs(ids) do
    local key = key_of(id)
    local rec = decode(redis.call('HGET', k_tasks, key))
    if rec and rec.reply_to and rec.reply_to ~= ghost then
      post(rec.reply_to, reply_of(public_id(id, facts), rec, { status = 'deleted' }))
    end
    redis.call('HDEL', k_tasks, key)
  end
end
local more = ghost and redis.call('EXISTS', k_tasks) == 1
if ghost and not more and redis.call('EXISTS', k_outbox) == 0 then redis.call('DEL', k_meta) end
local gone = redis.call('EXISTS', k_meta) == 0
return { now, more and 1 or gone and 2 or 0, unpack((ghost or ARGV[3] == '1' or left_behind()) and letters(ARGV[2]) or {}) }
