-- Part: the moment of this step. ARGV[1] is in ms, or '' for the server's clock.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
