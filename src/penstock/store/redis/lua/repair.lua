-- Writes that the client's check has computed: see penstock.store.redis.checks.

-- script: repair
-- Write each item, unless something that it depends on has changed since.
-- KEYS: tasks ready buried taken delivered due queue members micro_queues addresses outcomes kept groups waits
-- ARGV: now, shape, limit, then of each item: number of guards, part, field, `=` and its value or '' for none, ...; number of
--   writes, number of words, command, part, word, ..., ...
-- Returns: now, how many of them were written
-- WITH: now tube
-- FLAGS: allow-oom
local MARKED, place, written = { tasks = 't', outcomes = 'o' }, 3, 0

local function next_word()
  place = place + 1
  return ARGV[place]
end

local function next_key() return string.sub(k_meta, 1, -5) .. next_word() end

local function guard_holds()
  local stored = redis.call('HGET', next_key(), next_word())
  return (stored and '=' .. stored or '') == next_word()
end

local function write()
  local words, command, key = tonumber(next_word()), next_word(), next_key()
  redis.call(command, key, unpack(ARGV, place + 1, place + words))
  local letter = mark_changed and MARKED[string.match(key, '%a+$')]
  for i = 1, letter and words or 0, command == 'HSET' and 2 or 1 do mark_changed(letter .. ARGV[place + i]) end
  place = place + words
end

while place < #ARGV do
  local good = true
  for _ = 1, tonumber(next_word()) do good = guard_holds() and good end
  for _ = 1, tonumber(next_word()) do
    if good then write() else place = place + 3 + ARGV[place + 1] end
  end
  if good then written = written + 1 end
end
readied = written -- maybe
finish()
return { now, written }
