-- Part: how every script of a tube begins and ends. ARGV[1] is the moment in ms, or '' for the server's clock.
-- KEYS: meta due
-- The hash meta holds the last id, the counters, `paused`, and two flags that keep news rare: `asked` while a blocked
-- take has looked in vain and was told nothing since, with the moment until which it then sleeps; `full` while a put
-- found no room. `facts` is there once a task of it had an address, a reply tube or a group. Without `last` there is
-- no tube.
local head = redis.call('HMGET', k_meta, 'last', 'paused', 'asked', 'full', 'facts')
if not head[1] then return { -1 } end

local counted, readied, removed = {}, 0, 0
-- What follows elsewhere: the groups that ended, and replies for other tubes; empty where there is none of either.
local follows, awaited = {}, false

local function count(name, by) counted[name] = (counted[name] or 0) + by end

local function tell()
  local prefix, no = string.match(k_meta, '^{(.*):(%d+)}:meta$')
  redis.call('PUBLISH', prefix .. ':news', no)
end

local function due_before(moment)
  local first = redis.call('ZRANGE', k_due, 0, 0, 'WITHSCORES')[2]
  return first and tonumber(first) < moment
end

-- Write the counters, and tell other processes what someone waits for.
local function finish()
  for name, by in pairs(counted) do
    if by ~= 0 then redis.call('HINCRBY', k_meta, name, by) end
  end
  counted = {}
  local heard = head[3] and (readied > 0 or due_before(tonumber(head[3])))
  local room = removed > 0 and head[4]
  if heard then redis.call('HDEL', k_meta, 'asked') end
  if room then redis.call('HDEL', k_meta, 'full') end
  if heard or room or awaited then tell() end
end
