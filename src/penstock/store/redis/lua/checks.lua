-- Writes that the client's check has computed: see penstock.store.redis.checks.

-- script: write_unchanged
-- Write fields of hashes, each unless it has changed since it was read.
-- KEYS: tasks addresses outcomes groups waits micro_queues
-- ARGV: now, shape, limit, then of each field: part, field, `=` and the value that was read or '' for none, the same of the
--   value to write, ...
-- Returns: now
-- WITH: now tube
-- FLAGS: allow-oom
local MARKED = { tasks = 't', outcomes = 'o' }
for i = 4, #ARGV, 4 do
  local part, field, before, after = unpack(ARGV, i, i + 3)
  local key = string.sub(k_meta, 1, -5) .. part
  local stored = redis.call('HGET', key, field)
  if (stored and '=' .. stored or '') == before then
    if after == '' then redis.call('HDEL', key, field) else redis.call('HSET', key, field, string.sub(after, 2)) end
    if mark_changed and MARKED[part] then mark_changed(MARKED[part] .. field) end
    readied = 1 -- maybe
  end
end
finish()
return { now }
