// The side that enqueues, for graphile-worker: as driver.py. It keeps no results, so the handler sends its moment itself.
const dgram = require('dgram');
const { makeWorkerUtils } = require('graphile-worker');
const { rates, waits } = require('./clock.cjs');

const subjects = {
  install: async (utils) => { await utils.migrate(); return {}; },
  enqueue: (utils, ...sizes) => rates(
    (n) => utils.addJob('noop', { n }),
    (ns) => utils.addJobs(ns.map((n) => ({ identifier: 'noop', payload: { n } }))),
    ...sizes,
  ),
  waits: async (utils, times) => {
    const link = dgram.createSocket('udp4');
    await new Promise((resolve) => link.bind(Number(process.env.BENCH_STAMPS), '127.0.0.1', resolve));
    const answer = await waits(async () => {
      const stamp = new Promise((resolve) => link.once('message', (data) => resolve(Number(data))));
      await utils.addJob('stamp', {});
      return stamp;
    }, times, false);
    link.close();
    return answer;
  },
};

(async () => {
  const [what, ...sizes] = process.argv.slice(2);
  const logger = new (require('graphile-worker').Logger)(() => () => {});
  const utils = await makeWorkerUtils({ connectionString: process.env.BENCH_URL, logger });
  console.log(JSON.stringify(await subjects[what](utils, ...sizes.map(Number))));
  await utils.release();
})();
