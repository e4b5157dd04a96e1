// One worker process of BullMQ.
const { Worker } = require('bullmq');
const { now, first } = require('./clock.cjs');

const port = Number(new URL(process.env.BENCH_URL).port);

const worker = new Worker('bench', async (job) => {
  if (job.name === 'stamp') return now();
  first();
  if (job.name === 'nap') await new Promise((resolve) => setTimeout(resolve, 10));
}, {
  connection: { host: '127.0.0.1', port },
  concurrency: Number(process.env.BENCH_CONCURRENCY || 50),
});
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, async () => { await worker.close(); process.exit(0); });
