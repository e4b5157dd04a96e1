// The side that enqueues, for BullMQ: as driver.py, with the same arguments and the same line of JSON.
const { Queue, QueueEvents } = require('bullmq');

const port = Number(new URL(process.env.BENCH_URL).port);
const connection = { host: '127.0.0.1', port };
// A finished job leaves nothing behind; for whoever waits, it must stay for a moment.
const keep = process.env.BENCH_RESULTS ? { count: 100 } : true;
const defaultJobOptions = { removeOnComplete: keep, removeOnFail: keep };
const chunk = Number(process.env.BENCH_CHUNK || 1000);
const now = () => Number(process.hrtime.bigint()) / 1e9;
const used = () => { const { user, system } = process.cpuUsage(); return user + system; };

async function enqueue(queue, bulk, singles, together) {
  const rates = {};
  await queue.add('noop', { n: 0 });
  let began = now();
  for (let start = 0; start < bulk; start += chunk) {
    const jobs = [];
    for (let n = start; n < Math.min(bulk, start + chunk); n++) jobs.push({ name: 'noop', data: { n } });
    await queue.addBulk(jobs);
  }
  rates['bulk enqueue'] = bulk / (now() - began);
  began = now();
  const cpu = used();
  for (let n = 0; n < singles; n++) await queue.add('noop', { n });
  rates['awaited enqueue'] = singles / (now() - began);
  rates['enqueue, processor time'] = (used() - cpu) / singles;
  began = now();
  await Promise.all(Array.from({ length: together }, (_, n) => queue.add('noop', { n })));
  rates['concurrent enqueue'] = together / (now() - began);
  return rates;
}

async function waits(queue, times) {
  const events = new QueueEvents('bench', { connection });
  await events.waitUntilReady();
  const toStart = [];
  const toAnswer = [];
  for (let n = 0; n < times + 30; n++) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    const asked = now();
    const job = await queue.add('stamp', {});
    const started = await job.waitUntilFinished(events, 30_000);
    if (n < 30) continue;
    toAnswer.push((now() - asked) * 1000);
    toStart.push((started - asked) * 1000);
  }
  await events.close();
  return { 'idle enqueue to start': toStart, 'request/response': toAnswer };
}

(async () => {
  const [what, ...sizes] = process.argv.slice(2);
  const queue = new Queue('bench', { connection, defaultJobOptions });
  const answer = await { enqueue, waits }[what](queue, ...sizes.map(Number));
  console.log(JSON.stringify(answer));
  await queue.close();
})();
