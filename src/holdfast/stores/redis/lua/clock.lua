-- Reads the store's clock and the end of the log; for tests, shifts the clock. [TIME-1]   uses: nothing
--
-- request: { 'now' }, or { 'shift', ms } to shift the clock first
-- Answers { now, number of the last event }. Shifting is sent once. Writes the counter `shift`.

if request[1] == 'shift' then
  call('HSET', KEYS[1], 'shift', int_text(shift + request[2]))
  publish('ready', '')
  publish('done', '')
end
return { now, log_end }
