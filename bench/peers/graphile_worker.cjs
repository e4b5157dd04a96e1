// One worker process of graphile-worker, with the settings of its own page on performance.
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
      localQueue: { size: 500 },
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
