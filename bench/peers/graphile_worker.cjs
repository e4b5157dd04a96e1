// One worker process of graphile-worker, as its own page on performance sets it, but for a local queue four times as long.
const { run, Logger } = require('graphile-worker');
const { first, sendStamp } = require('./clock.cjs');

const size = Number(process.env.BENCH_LOCAL_QUEUE ?? 2000);

run({
  preset: {
    worker: {
      connectionString: process.env.BENCH_URL,
      concurrentJobs: Number(process.env.BENCH_CONCURRENCY || 24),
      maxPoolSize: 25,
      ...(size ? { localQueue: { size } } : {}),
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
      logger: new Logger(() => () => {}),
    },
  },
  taskList: {
    noop: async () => first(),
    nap: async () => { first(); await new Promise((resolve) => setTimeout(resolve, 10)); },
    stamp: async () => sendStamp(),
  },
});
