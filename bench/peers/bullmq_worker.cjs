// One worker process of BullMQ. Marks the first handler as first.py does.
const fs = require('fs');
const { Worker } = require('bullmq');

const port = Number(new URL(process.env.BENCH_URL).port);
const now = () => Number(process.hrtime.bigint()) / 1e9;
let marked = false;

function first() {
  if (marked) return;
  marked = true;
  const { user, system } = process.cpuUsage();
  const file = `${process.env.BENCH_MARKS}/${process.pid}`;
  fs.writeFileSync(`${file}.part`, `${now()} ${(user + system) / 1e6}`);
  fs.renameSync(`${file}.part`, file);
}

const worker = new Worker('bench', async (job) => {
  if (job.name === 'stamp') return now();
  first();
}, {
  connection: { host: '127.0.0.1', port },
  concurrency: Number(process.env.BENCH_CONCURRENCY || 50),
});
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, async () => { await worker.close(); process.exit(0); });
