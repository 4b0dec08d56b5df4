-- Part: the tasks of a put; refuses those that find no room.
local runs, wanted = cmsgpack.unpack(ARGV[5]), #ARGV - 5

if ARGV[4] ~= '' then
  local there = total()
  if there + wanted > tonumber(ARGV[4]) then
    redis.call('HSET', k_meta, 'full', '1')
    return { now, -1, there }
  end
end
