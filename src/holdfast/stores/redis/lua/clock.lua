-- Tells the store's clock and the end of the log and, for tests, moves the clock. [TIME-1]   uses: nothing
--
-- request: { 'now' } -> { now, number of the last event }; { 'shift', ms } moves it. Sent once.

if request[1] == 'shift' then
  call('HSET', KEYS[1], 'shift', whole(shift + request[2]))
  publish('ready', '')
  publish('done', '')
end
return { now, tonumber(counters[4]) or 0 }
