-- How scripts begin and end. penstock.store.redis.scripts assembles scripts from parts; a part may use what the parts
-- before it define.
--
-- The first arguments of most scripts of a tube:
--   now    the time in ms, or '' for the server's clock
--   shape  letters: `2` a second rank orders the tube, `f` fair, `n` new tasks always come last, `c` hand-outs set a clock
--   limit  tasks of a micro-queue that may be taken at the same time; where hand-outs set a clock, the period in ms
--
-- Most scripts that change tasks return
--   now, readied, removed, log, ...
--   readied, removed  how many tasks became ready and how many were removed
--   log               events, id, record, ... of every change, in order
-- Scripts of a tube return {-1} where the tube does not exist.

-- part: allow_oom
-- Only before Redis 7: a script may write at the memory limit if its first write needs no memory. This one changes
-- nothing.
redis.call('PERSIST', KEYS[1])

-- part: now
-- The time of this step in ms.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- part: tube
-- The tube's header, its counters and notifications.
-- The hash meta holds the last id, the counters, `paused` and two flags that keep notifications rare: `take_waits` while a
-- blocked take has found nothing and was not notified since (its value is the time until which that take sleeps), `full`
-- after a put found the tube full. `facts` exists once a task of the tube had an address, a reply tube or a group: how long
-- outcomes are kept, in six bytes, and what penstock.store.redis.outbox must know of a shard. `awaited` exists while a
-- caller waits for the end of a task or a group. Without `last` the tube does not exist.
-- KEYS: meta due
local meta = redis.call('HMGET', k_meta, 'last', 'paused', 'take_waits', 'full', 'facts')
if not meta[1] then return { -1 } end

local counted, readied, removed, awaited = {}, 0, 0, false

-- A number as a word of a command: scripts format a number that they pass as such again for every word, which is slow.
local function word_of(number) return string.format('%.17g', number) end

-- Run a command with many arguments in several calls: Lua's stack holds only some thousand.
local function call_with(command, key, words)
  for i = 1, #words, 1000 do redis.call(command, key, unpack(words, i, math.min(i + 999, #words))) end
end

-- The values of many fields of a hash, false for those that it does not have.
local function read_many(key, fields)
  if #fields > 0 and #fields <= 1000 then return redis.call('HMGET', key, unpack(fields)) end
  local values = {}
  for first = 1, #fields, 1000 do
    for i, value in ipairs(redis.call('HMGET', key, unpack(fields, first, math.min(first + 999, #fields)))) do
      values[first + i - 1] = value
    end
  end
  return values
end

local function count(name, by) counted[name] = (counted[name] or 0) + by end

local function notify()
  local prefix, no = string.match(k_meta, '^{(.*):(%d+)}:meta$')
  redis.call('PUBLISH', prefix .. ':tube_changed', no)
end

-- Note that something ended that a caller may wait for.
local function notify_waiters() awaited = redis.call('HDEL', k_meta, 'awaited') == 1 or awaited end

-- Write the counters, and notify other processes if their callers wait for what changed.
local function finish()
  if save_names then save_names() end
  for name, by in pairs(counted) do
    if by ~= 0 then redis.call('HINCRBY', k_meta, name, by) end
  end
  counted = {}
  local first = meta[3] and tonumber(redis.call('ZRANGE', k_due, 0, 0, 'WITHSCORES')[2])
  local wake_takers = meta[3] and (readied > 0 or (first and first < tonumber(meta[3])))
  local wake_putters = removed > 0 and meta[4]
  if wake_takers then redis.call('HDEL', k_meta, 'take_waits') end
  if wake_putters then redis.call('HDEL', k_meta, 'full') end
  if wake_takers or wake_putters or awaited then notify() end
end

-- part: count_tasks
-- How many tasks the tube held when this step began.
local function count_tasks()
  local gone = redis.call('HMGET', k_meta, 'ack', 'fail', 'delete', 'ttl', 'skipped')
  return meta[1] - (gone[1] or 0) - (gone[2] or 0) - (gone[3] or 0) - (gone[4] or 0) - (gone[5] or 0)
end
