// The side that enqueues, for BullMQ: as driver.py, with the same arguments and the same line of JSON.
const { Queue, QueueEvents } = require('bullmq');
const { rates, waits } = require('./clock.cjs');

const port = Number(new URL(process.env.BENCH_URL).port);
const connection = { host: '127.0.0.1', port };
// A finished job leaves nothing behind; for whoever waits, it must stay for a moment.
const keep = process.env.BENCH_RESULTS ? { count: 100 } : true;
const defaultJobOptions = { removeOnComplete: keep, removeOnFail: keep };

const subjects = {
  enqueue: (queue, ...sizes) => rates(
    (n) => queue.add('noop', { n }),
    (ns) => queue.addBulk(ns.map((n) => ({ name: 'noop', data: { n } }))),
    ...sizes,
  ),
  waits: async (queue, times) => {
    const events = new QueueEvents('bench', { connection });
    await events.waitUntilReady();
    const answer = await waits(async () => (await queue.add('stamp', {})).waitUntilFinished(events, 30_000), times, true);
    await events.close();
    return answer;
  },
};

(async () => {
  const [what, ...sizes] = process.argv.slice(2);
  const queue = new Queue('bench', { connection, defaultJobOptions });
  console.log(JSON.stringify(await subjects[what](queue, ...sizes.map(Number))));
  await queue.close();
})();
