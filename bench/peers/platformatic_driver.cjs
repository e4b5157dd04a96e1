// The side that enqueues, for @platformatic/job-queue: as driver.py. It has no bulk call: all at once.
const { randomUUID } = require('crypto');
const { Queue, RedisStorage } = require('@platformatic/job-queue');
const { drive, rates, fill, waits } = require('./clock.cjs');

const queue = new Queue({ storage: new RedisStorage({ url: process.env.BENCH_URL }), resultTTL: 1000 });
const one = (n) => queue.enqueue(randomUUID(), { n });
const many = (values) => Promise.all(values.map(one));

drive({
  begin: () => queue.start(),
  enqueue: (...sizes) => rates(one, many, ...sizes),
  fill: (...sizes) => fill(one, many, ...sizes),
  waits: (times) => waits(() => queue.enqueueAndWait(randomUUID(), { stamp: true }, { timeout: 30_000 }), times, true),
  end: () => queue.stop(),
});
