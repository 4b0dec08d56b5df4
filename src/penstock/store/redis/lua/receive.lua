-- receive: put the replies that tasks of another tube left here, each once, whatever the capacity.
-- ARGV: now, shape, limit, the other tube, spec of a task without options: msgpack, number, data, …
-- Answer: now, readied, removed, log, follows
-- KEYS: inbox
-- WITH: moment base record made decode step lanes? unleased? add
-- FLAGS: allow-oom
-- inbox: tube -> the highest number that came from it. They come in order, so what is not above it is here already.
local done, spec = tonumber(redis.call('HGET', k_inbox, ARGV[4]) or 0), cmsgpack.unpack(ARGV[5])
for i = 6, #ARGV, 2 do
  local no = tonumber(ARGV[i])
  if no > done then
    add_plain(spec, ARGV[i + 1])
    done = no
  end
end
redis.call('HSET', k_inbox, ARGV[4], done)
close()
return { now, readied, removed, log, follows }
