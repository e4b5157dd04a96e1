// One worker process of @platformatic/job-queue.
const { Queue, RedisStorage } = require('@platformatic/job-queue');
const { now, first } = require('./clock.cjs');

const queue = new Queue({
  storage: new RedisStorage({ url: process.env.BENCH_URL }),
  concurrency: Number(process.env.BENCH_CONCURRENCY || 100),
  resultTTL: 1000,
});
queue.execute(async (job) => {
  if (job.payload.stamp) return now();
  first();
  return null; // Without a result, its serializer throws, and the job is retried.
});
queue.start();
process.on('SIGTERM', async () => { await queue.stop(); process.exit(0); });
