// What the drivers and workers in Node share: the machine's monotonic clock, and the mark of the first handler (first.py).
const fs = require('fs');

const now = () => Number(process.hrtime.bigint()) / 1e9;
const used = () => { const { user, system } = process.cpuUsage(); return user + system; };
let marked = false;

function first() {
  if (marked) return;
  marked = true;
  const file = `${process.env.BENCH_MARKS}/${process.pid}`;
  fs.writeFileSync(`${file}.part`, `${now()} ${used() / 1e6}`);
  fs.renameSync(`${file}.part`, file);
}

async function rates(one, many, bulk, singles, together) {
  const chunk = Number(process.env.BENCH_CHUNK || 1000);
  const answer = {};
  await one(0);
  let began = now();
  for (let start = 0; start < bulk; start += chunk) {
    await many(Array.from({ length: Math.min(chunk, bulk - start) }, (_, n) => start + n));
  }
  answer['bulk enqueue'] = bulk / (now() - began);
  began = now();
  const cpu = used();
  for (let n = 0; n < singles; n++) await one(n);
  answer['awaited enqueue'] = singles / (now() - began);
  answer['enqueue, processor time'] = (used() - cpu) / singles;
  began = now();
  await Promise.all(Array.from({ length: together }, (_, n) => one(n)));
  answer['concurrent enqueue'] = together / (now() - began);
  return answer;
}

// `ask` enqueues a job and gives back when its handler began, as soon as it knows; `answers`: it knows by the result.
async function waits(ask, times, answers) {
  const toStart = [];
  const toAnswer = [];
  for (let n = 0; n < times + 30; n++) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    const asked = now();
    const started = await ask();
    if (n < 30) continue;
    toAnswer.push((now() - asked) * 1000);
    toStart.push((started - asked) * 1000);
  }
  return { 'idle enqueue to start': toStart, ...(answers ? { 'request/response': toAnswer } : {}) };
}

module.exports = { now, first, rates, waits };
