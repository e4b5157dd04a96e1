// A Holdfast worker in TypeScript, with nothing but Node 20 or newer. It claims, renews and finishes over HTTP:
//   HOLDFAST_URL=http://127.0.0.1:8000 HOLDFAST_TOKEN=... node --import ./strip-types.mjs worker.ts emails
const { HOLDFAST_URL = "http://127.0.0.1:8000", HOLDFAST_TOKEN = "" } = process.env;
const queues = process.argv.slice(2);
const CONCURRENCY = 10, LEASE_S = 30, WAIT_S = 20;

interface Job { queue: string; id: string; type: string; payload: any; token: string; fence: number; attempt: number }
interface Held { job: Job; abort: AbortController }
type Handler = (job: Job, signal: AbortSignal) => Promise<unknown>;

// A handler runs at least once, so it must be idempotent; job.fence is a fence for what it does elsewhere.
const handlers: Record<string, Handler> = {
  async send_email(job: Job) { return `${job.payload.template ?? "welcome"} -> ${job.payload.to}`; },
  async slow(job: Job, signal: AbortSignal) { return new Promise((_, stop) => signal.addEventListener("abort", () => stop(signal.reason))); },
};

async function post(path: string, body: unknown, signal?: AbortSignal): Promise<any> {
  const headers = { authorization: `Bearer ${HOLDFAST_TOKEN}`, "content-type": "application/json" };
  const answer = await fetch(HOLDFAST_URL + path, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!answer.ok) throw new Error(`${path} answered ${answer.status}: ${await answer.text()}`);
  return answer.json();
}
const lease = ({ queue, id, token }: Job) => ({ queue, id, token });
const pause = (ms: number) => new Promise((go) => setTimeout(go, ms));

const held = new Set<Held>();
const leaving = new AbortController();
for (const name of ["SIGTERM", "SIGINT"]) process.on(name, () => leaving.abort(new Error("told to stop")));

async function finish(job: Job, outcome: object): Promise<void> {
  for (let wait = 100; ; wait *= 2) { // The same token and outcome again is answered like the first time.
    try { return await post("/v1/leases:finish", { leases: [{ ...lease(job), ...outcome }] }); }
    catch (error) { if (wait > 5000) return console.error("lost", job.id, String(error)); await pause(wait); }
  }
}
async function run(one: Held): Promise<void> {
  const { job, abort } = one;
  let outcome: object;
  try {
    if (!handlers[job.type]) throw new Error(`no handler for ${job.type}`);
    outcome = { outcome: "complete", result: (await handlers[job.type](job, abort.signal)) ?? null };
  } catch (error: any) {
    const { name, message, stack } = error;
    outcome = { outcome: "retry", error: { type: name, message, traceback: stack ?? "" } };
  }
  if (leaving.signal.aborted && abort.signal.aborted) outcome = { outcome: "release" };
  if (!abort.signal.aborted || leaving.signal.aborted) await finish(job, outcome);
  held.delete(one);
}
const renewal = setInterval(async () => { // A lease that is gone, or a job that was canceled, is told here.
  const all = [...held];
  if (!all.length) return;
  const { items } = await post("/v1/leases:extend", { leases: all.map((one) => ({ ...lease(one.job), lease_s: LEASE_S })) }).catch(() => ({ items: [] }));
  items.forEach((item: any, n: number) => { if (item.error) all[n].abort.abort(new Error(item.error.code)); });
}, (LEASE_S * 1000) / 3);

while (!leaving.signal.aborted) {
  const limit = CONCURRENCY - held.size;
  if (limit <= 0) { await pause(50); continue; }
  try {
    const wish = { queues, limit, lease_s: LEASE_S, wait_s: WAIT_S, worker_id: `node-${process.pid}` };
    const { jobs } = await post("/v1/claims", wish, leaving.signal);
    for (const job of jobs) { const one = { job, abort: new AbortController() }; held.add(one); void run(one); }
  } catch (error) { if (!leaving.signal.aborted) { console.error(String(error)); await pause(1000); } }
}
for (const one of held) one.abort.abort(leaving.signal.reason); // A handler that listens ends; its job is released.
while (held.size) await pause(20);
clearInterval(renewal);
