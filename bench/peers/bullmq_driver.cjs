// The side that enqueues, for BullMQ: as driver.py, with the same arguments and the same line of JSON.
const { Queue, QueueEvents, Worker } = require('bullmq');
const { now, drive, rates, fill, waits, crowd } = require('./clock.cjs');

const port = Number(new URL(process.env.BENCH_URL).port);
const connection = { host: '127.0.0.1', port };
// A finished job leaves nothing behind; for whoever waits, it must stay for a moment.
const keep = process.env.BENCH_RESULTS ? { count: 100 } : true;
const queue = new Queue('bench', { connection, defaultJobOptions: { removeOnComplete: keep, removeOnFail: keep } });
queue.setMaxListeners(0);
const one = (n) => queue.add('noop', { n });
const many = (name) => (values) => queue.addBulk(values.map((n) => ({ name, data: { n } })));

async function asking(measure, times, ...more) {
  const events = new QueueEvents('bench', { connection });
  events.setMaxListeners(0);
  await events.waitUntilReady();
  const answer = await measure(async () => (await queue.add('stamp', {})).waitUntilFinished(events, 60_000), times, ...more);
  await events.close();
  return answer;
}

// Taken by a worker that never comes back; the first look for such jobs notes them, the second gives them to others.
async function recover(jobs) {
  const lost = new Worker('bench', null, { connection, lockDuration: 1000, stalledInterval: 1 });
  for (let n = 0; n < jobs; n += 100) await Promise.all(Array.from({ length: 100 }, () => lost.getNextJob('lost')));
  await lost.moveStalledJobsToWait();
  await new Promise((resolve) => setTimeout(resolve, 1100));
  const began = now();
  await lost.moveStalledJobsToWait();
  const took = (now() - began) * 1000;
  if (await queue.getActiveCount()) throw new Error('not all were recovered');
  await lost.close();
  return { recovered: took };
}

drive({
  begin: () => queue.waitUntilReady(),
  enqueue: (...sizes) => rates(one, many('noop'), ...sizes),
  fill: (...sizes) => fill(one, many('noop'), ...sizes),
  naps: (jobs) => fill(null, many('nap'), jobs),
  waits: (times) => asking(waits, times, true),
  recover: async (jobs) => { await fill(null, many('noop'), jobs); return recover(jobs); },
  crowd: (times) => asking(crowd, times),
  end: () => queue.close(),
});
