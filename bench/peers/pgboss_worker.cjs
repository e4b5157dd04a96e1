// One worker process of pg-boss: large batches, the next at once while they are full, and woken by a notice.
const { PgBoss } = require('pg-boss');
const { first, sendStamp } = require('./clock.cjs');

const boss = new PgBoss({
  connectionString: process.env.BENCH_URL,
  supervise: false,
  schedule: false,
  useListenNotify: true,
});

(async () => {
  await boss.start();
  const batchSize = Number(process.env.BENCH_BATCH || 1000);
  const localConcurrency = Number(process.env.BENCH_CONCURRENCY || 2);
  const often = { pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5 };
  await boss.work('noop', { batchSize, localConcurrency, burstWhenBatchFull: true, ...often }, async () => first());
  await boss.work('stamp', often, async () => sendStamp());
})();
process.on('SIGTERM', async () => { await boss.stop({ graceful: false }); process.exit(0); });
