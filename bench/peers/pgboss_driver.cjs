// The side that enqueues, for pg-boss: as driver.py. Nobody is told that a job has ended.
const { PgBoss } = require('pg-boss');
const { now, drive, rates, fill, stamped } = require('./clock.cjs');

const boss = new PgBoss({ connectionString: process.env.BENCH_URL, supervise: false, schedule: false });
const one = (n) => boss.send('noop', { n });
const many = (values) => boss.insert('noop', values.map((n) => ({ data: { n } })));

// Taken by a worker that never comes back, and expired after a second. Its upkeep of the queue is one call, for all it does.
async function recover(jobs) {
  for (let n = 0; n < jobs; n += 1000) await boss.fetch('noop', { batchSize: 1000 });
  await new Promise((resolve) => setTimeout(resolve, 1100));
  const began = now();
  await boss.supervise('noop');
  const took = (now() - began) * 1000;
  const freed = await boss.fetch('noop', { batchSize: jobs, ignoreStartAfter: true });
  if (freed.length !== jobs) throw new Error('not all were recovered');
  return { recovered: took };
}

drive({
  begin: () => boss.start(),
  install: async () => {
    for (const name of ['noop', 'stamp']) await boss.createQueue(name, { notify: true });
    return {};
  },
  enqueue: (...sizes) => rates(one, many, ...sizes),
  fill: (...sizes) => fill(one, many, ...sizes),
  recover: async (jobs) => {
    await fill(one, (values) => boss.insert('noop', values.map((n) => ({ data: { n }, expireInSeconds: 1 }))), jobs);
    return recover(jobs);
  },
  waits: (times) => stamped(() => boss.send('stamp', {}), times),
  end: () => boss.stop({ graceful: false }),
});
