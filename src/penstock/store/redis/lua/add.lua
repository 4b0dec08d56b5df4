-- Part: tasks that arrive one by one. `last` is the last id given; whoever adds a task raises it first.
local last, newest = tonumber(head[1]), string.find(ARGV[2], 'n', 1, true) ~= nil

local function add(rec)
  local key = key_of(last)
  fetched[key] = rec
  if moved and rec.state == 'r' then moved(key, rec, nil, newest) end
  save(key, rec)
  if mark then mark('t' .. key) end
  set_timer(key, nil, rec.at)
  enter(key, rec)
  return key
end

-- A task without options of its own: a reply, or work of a group.
local function add_plain(spec, payload)
  last = last + 1
  local rec = made(spec, last)
  rec.payload = payload
  if name_reply then name_reply(key_of(last), rec) end
  note('put', add(rec), rec)
end

save_last = function()
  if last > tonumber(head[1]) then redis.call('HSET', k_meta, 'last', last) end
end
