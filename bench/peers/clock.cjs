// What the drivers and workers in Node share: the machine's monotonic clock, the mark of the first handler (first.py),
// the moments sent past the queue (stamps.py), and what a driver is asked (driver.py).
const dgram = require('dgram');
const fs = require('fs');

const CHUNK = Number(process.env.BENCH_CHUNK || 1000);
const now = () => Number(process.hrtime.bigint()) / 1e9;
const used = () => { const { user, system } = process.cpuUsage(); return user + system; };
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const count = (size) => Array.from({ length: size }, (_, n) => n);
let marked = false;
let link = null;

function first() {
  if (marked) return;
  marked = true;
  const file = `${process.env.BENCH_MARKS}/${process.pid}`;
  fs.writeFileSync(`${file}.part`, `${now()} ${used() / 1e6}`);
  fs.renameSync(`${file}.part`, file);
}

function sendStamp() {
  const moment = now();
  link ??= dgram.createSocket('udp4');
  link.send(String(moment), Number(process.env.BENCH_STAMPS), '127.0.0.1');
}

// `one` enqueues a job, `many` several with one call; null if the peer cannot, then one by one fills the queue.
async function put(one, many, values) {
  if (!many) for (const value of values) await one(value);
  else for (let start = 0; start < values.length; start += CHUNK) await many(values.slice(start, start + CHUNK));
}

async function rates(one, many, bulk, singles, together) {
  const answer = {};
  await one(0);
  if (many) {
    const began = now();
    await put(one, many, count(bulk));
    answer['bulk enqueue'] = bulk / (now() - began);
  } else {
    singles = bulk;
  }
  let began = now();
  const cpu = used();
  await put(one, null, count(singles));
  answer['awaited enqueue'] = singles / (now() - began);
  answer['enqueue, processor time'] = (used() - cpu) / singles;
  began = now();
  await Promise.all(count(together).map(one));
  answer['concurrent enqueue'] = together / (now() - began);
  return answer;
}

async function fill(one, many, jobs, size) {
  await put(one, many, size ? count(jobs).map(() => 'x'.repeat(size)) : count(jobs));
  return {};
}

// `ask` enqueues a job and gives back when its handler began, as soon as it knows; `answers`: it knows by the result.
async function waits(ask, times, answers) {
  const toStart = [];
  const toAnswer = [];
  for (let n = 0; n < times + 30; n++) {
    await pause(5);
    const asked = now();
    const started = await ask();
    if (n < 30) continue;
    toAnswer.push((now() - asked) * 1000);
    toStart.push((started - asked) * 1000);
  }
  return { 'idle enqueue to start': toStart, ...(answers ? { 'request/response': toAnswer } : {}) };
}

async function listen() {
  const ear = dgram.createSocket('udp4');
  await new Promise((resolve) => ear.bind(Number(process.env.BENCH_STAMPS), '127.0.0.1', resolve));
  return ear;
}

// As waits, for a peer that keeps no results: its handler sends its moment itself.
async function stamped(enqueue, times) {
  const ear = await listen();
  const answer = await waits(async () => {
    const stamp = new Promise((resolve) => ear.once('message', (data) => resolve(Number(data))));
    await enqueue();
    return stamp;
  }, times, false);
  ear.close();
  return answer;
}

// So many asked in a row, whether the last one was answered or not.
async function crowd(ask, times) {
  const started = await Promise.all(count(times).map(async (n) => {
    await pause(20 * n);
    const asked = now();
    return (await ask() - asked) * 1000;
  }));
  return { 'small tenants': started };
}

async function drive(subjects) {
  const [what, ...sizes] = process.argv.slice(2);
  await subjects.begin();
  console.log(JSON.stringify(await subjects[what](...sizes.map(Number))));
  await subjects.end();
}

module.exports = { now, first, sendStamp, drive, rates, fill, waits, listen, stamped, crowd };
