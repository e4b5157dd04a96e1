// One worker process of graphile-worker, as its own page on performance sets it, but for a local queue four times as long.
const dgram = require('dgram');
const { run, Logger } = require('graphile-worker');
const { now, first } = require('./clock.cjs');

const link = dgram.createSocket('udp4');

run({
  preset: {
    worker: {
      connectionString: process.env.BENCH_URL,
      concurrentJobs: 24,
      maxPoolSize: 25,
      localQueue: { size: Number(process.env.BENCH_LOCAL_QUEUE || 2000) },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
      logger: new Logger(() => () => {}),
    },
  },
  taskList: {
    noop: async () => first(),
    stamp: async () => link.send(String(now()), Number(process.env.BENCH_STAMPS), '127.0.0.1'),
  },
});
