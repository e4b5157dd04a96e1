// The side that enqueues, for graphile-worker: as driver.py. It keeps no results, so the handler sends its moment itself.
const { makeWorkerUtils, Logger } = require('graphile-worker');
const { drive, rates, fill, stamped, crowd, listen } = require('./clock.cjs');

let utils = null;
const one = (n) => utils.addJob('noop', { n });
const many = (identifier) => (values) => utils.addJobs(values.map((n) => ({ identifier, payload: { n } })));

drive({
  begin: async () => {
    const logger = new Logger(() => () => {});
    utils = await makeWorkerUtils({ connectionString: process.env.BENCH_URL, logger });
  },
  install: async () => { await utils.migrate(); return {}; },
  enqueue: (...sizes) => rates(one, many('noop'), ...sizes),
  fill: (...sizes) => fill(one, many('noop'), ...sizes),
  naps: (jobs) => fill(null, many('nap'), jobs),
  waits: (times) => stamped(() => utils.addJob('stamp', {}), times),
  crowd: async (times) => {
    // First in, first out: the next to be told is the next that asked.
    const ear = await listen();
    const asked = [];
    ear.on('message', (data) => asked.shift()(Number(data)));
    const answer = await crowd(async () => {
      const stamp = new Promise((resolve) => asked.push(resolve));
      await utils.addJob('stamp', {});
      return stamp;
    }, times);
    ear.close();
    return answer;
  },
  end: () => utils.release(),
});
