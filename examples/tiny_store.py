"""A whole Holdfast store in one file: one dict of jobs under one lock, linear scans, the rules from `holdfast.core`.

It passes the conformance suite (tests/conformance/test_tiny_store.py). Read it to see what a store has to do: the types
and promises of each method are in `holdfast.store.Store`. `LocalStore` has the methods for everything but jobs: events,
settings, workers, notifications. A real store keeps the same rules with indexes, on a disk or a server. To register a
store, name its opener in the entry-point group `holdfast.stores`: `tiny = "tiny_store:open_tiny"`.
"""

from collections import defaultdict
from functools import partial

from holdfast import store as contract
from holdfast.core import dedup, fairness, lease, lifecycle, requests
from holdfast.core import job as answers
from holdfast.core.budgets import RECORD_BYTES, Usage, weight
from holdfast.core.explain import standing_of
from holdfast.core.job import TERMINAL, WAITING, JobKey, JobState, Report
from holdfast.core.retry import spread
from holdfast.kinds import store_kind
from holdfast.opening import Options
from holdfast.paging import list_page, queue_stats, shown_job
from holdfast.store import Hint
from holdfast.tables import LocalStore, SideTables

stores = {}


@store_kind(place="process")
def open_tiny(url):
    """`tiny:NAME` is one store per process and name."""
    options = Options(url)
    common = options.common()
    options.finish()
    return stores.setdefault(url.rest, TinyStore(common))


def batch(step):
    """A Store method from a step for one item: it runs for each item, under the lock, all at one instant."""

    async def method(self, items, *, connection=None):
        return self.each(partial(step, self), items, connection=connection)

    return method


class TinyStore(LocalStore):
    name = "tiny"
    capabilities = contract.Capabilities(
        name=name, durable=False, survives_power_loss=False, many_processes=False, many_hosts=False,
        transactional_enqueue=False, exact_turns=True, exact_quota=True,
        notes={"durable": "Everything is gone when the process ends."},
    )  # fmt: skip

    def __init__(self, options):
        super().__init__(options, SideTables())
        self._jobs = {}  # JobKey -> Job
        self._paused = set()  # (tenant, queue)
        self._turns = defaultdict(lambda: {"times": defaultdict(int), "inside": set(), "floor": 0})  # by queue name

    # Changes: look the job up, let core judge the call, make the transition, record what follows from it. -----------

    def find(self, key, now):
        job = self._jobs.get(key)
        return None if job is None or lifecycle.forgotten(job, now) else job

    def _of(self, tenant, queue=None):
        return [job for job in self._jobs.values() if job.tenant == tenant and queue in (None, job.queue)]

    def _record(self, job, event):
        """Every transition ends here: its event is logged, its key may be free, listeners are notified. [EVENT-1]"""
        self.side.log.append(event)
        self.side.keys.release(job)
        if job.state in WAITING:
            self.side.notifier.add(Hint.READY, job.tenant, job.queue)
        elif job.state in TERMINAL:
            self.side.notifier.add(Hint.DONE, *job.key)

    def _forget(self, job):
        del self._jobs[job.key]
        if job.result is not None and job.result.blob:
            self.side.dropped_blobs.append(job.result.blob)

    def enqueue_one(self, new, now):
        tenant, queue, id_ = new.key
        existing, scope = self._jobs.get(new.key), dedup.scope_of(tenant, queue, new.envelope)
        binding, holder = self._holder(scope)
        answer = dedup.decide(new, existing, binding, holder, now) or self._over_quota(tenant, queue)
        if answer is not None:
            return answer
        if existing is not None:
            self._forget(existing)
        self.side.last_seq += 1
        job, event = lifecycle.enqueue(new, self.side.last_seq, now)
        self._jobs[job.key] = job
        self.side.keys.bind(scope, dedup.bind(new, now))
        self._record(job, event)
        return answers.Queued(id_, job.state)

    def _holder(self, scope):
        binding = self.side.keys.get(scope)
        return binding, binding and self._jobs.get(JobKey(*scope[:2], binding.job_id))

    def _over_quota(self, tenant, queue):
        in_queue, in_tenant = (sum(job.state in WAITING for job in self._of(tenant, scope)) for scope in (queue, None))
        return self.side.settings.over_quota(tenant, queue, in_queue, in_tenant)

    def replay_one(self, key, now, by):
        job = self.find(key, now)
        refusal = requests.check_replay(job, key, now)
        if refusal is not None:
            return refusal
        scope = dedup.scope_of(key.tenant, key.queue, job.envelope) if dedup.retakes_key(job) else None
        refusal = dedup.check_retake(job, *self._holder(scope), now) or self._over_quota(key.tenant, key.queue)
        if refusal is not None:
            return refusal
        self.side.keys.bind(scope, dedup.Binding(job.id, "until_terminal"))
        self._record(job, lifecycle.replay(job, now, by))
        return answers.Replayed()

    @batch
    def finish(self, item, now):
        job = self.find(item.key, now)
        answer = lease.check(job, item.key, item.token, item.outcome, now)
        if answer is not None:
            return answer
        self._record(job, lifecycle.finish(job, item, now, self.options.retention))
        return answers.Finished(job.state)

    @batch
    def extend(self, item, now):
        return self._renew(lifecycle.extend, item, item.lease_ms, now)

    @batch
    def report(self, item, now):
        return self._renew(lifecycle.report, item, item, now)

    def _renew(self, change, item, argument, now):
        job = self.find(item.key, now)
        refusal = lease.check_live(job, item.key, item.token, now)
        if refusal is not None:
            return refusal
        event = change(job, argument, now, logged=self.options.all_events)
        if event is not None:
            self.side.log.append(event)
        return answers.Reported() if isinstance(item, Report) else answers.Extended(job.deadline, now)

    @batch
    def cancel(self, item, now):
        job = self.find(item.key, now)
        answer = requests.check_cancel(job, item)
        if answer is not None:
            return answer
        if job.state is JobState.LEASED:
            self.side.notifier.add(Hint.CANCELED, *job.key)
        self._record(job, lifecycle.cancel(job, now, self.options.retention, item.by))
        return "canceled"

    @batch
    def purge(self, item, now):
        job = self.find(item.key, now)
        answer = requests.check_purge(job, item)
        if answer is None:
            self.side.log.append(lifecycle.purge(job, now, self.side.purges.count(job, now), item.by))
            self._forget(job)
        return answer or "purged"

    @batch
    def set_result_ttl(self, item, now):
        job = self.find(item.key, now)
        answer = requests.check_result_ttl(job, item)
        if answer is None:
            lifecycle.set_result_ttl(job, item.ttl_ms, now)
        return answer or "updated"

    # Claiming -------------------------------------------------------------------------------------------------------

    async def claim(self, request):
        return (await self._claim([request]))[0]

    @batch
    def _claim(self, request, now):
        self._end_expired(contract.REPAIR_LIMIT, request.random, now)
        rotation = [(queue, self._ready(request.tenant, queue, now)) for queue in dict.fromkeys(request.queues)]
        taken = []
        while rotation and len(taken) < request.limit:
            queue, ready = rotation.pop(0)
            tenant = request.tenant or self._next_tenant(queue, {tenant for tenant, jobs in ready.items() if jobs})
            if not ready[tenant]:
                continue  # A queue without visible jobs leaves the rotation.
            job = ready[tenant].pop()
            self.side.last_token += 1
            deadline = now + request.lease_ms
            self._record(job, lifecycle.claim(job, self.side.last_token, deadline, request.worker_id, now))
            taken.append(job.snapshot())
            rotation.append((queue, ready))
        due = [job.visible_at for job in self._jobs.values() if job.queue in request.queues and job.state in WAITING]
        times = (at for at in (*due, self._next_deadline()) if at is not None and at > now)
        return answers.Claimed(taken, now, None if len(taken) == request.limit else min(times, default=None))

    def _ready(self, tenant, queue, now, *, paused=False):
        """The visible jobs of a queue name by tenant; the next one to claim is the last of its list. [CLAIM-2]"""
        ready = defaultdict(list)
        for job in sorted(self._jobs.values(), key=lambda job: (job.envelope.priority, -job.visible_at, -job.seq)):
            visible = job.queue == queue and job.state in WAITING and job.visible_at <= now
            if visible and tenant in (None, job.tenant) and (paused or (job.tenant, queue) not in self._paused):
                ready[job.tenant].append(job)
        return ready

    def _next_tenant(self, queue, tenants):
        """Whose turn it is; see `core.fairness`. A tenant that got work enters at the current minimum. [TENANT-4]"""
        turns = self._turns[queue]
        times, inside = turns["times"], turns["inside"] & tenants
        minimum = min((times[tenant] for tenant in inside), default=turns["floor"])
        for tenant in tenants - inside:
            times[tenant] = fairness.entry(times[tenant], minimum)
        turns["inside"] = tenants
        chosen = min(tenants, key=lambda tenant: (times[tenant], tenant), default=None)
        if chosen is not None:
            turns["floor"] = max(turns["floor"], times[chosen])
            times[chosen] += self.side.settings.turn_cost(chosen, queue)
        return chosen

    def _leases(self):
        leased = (job for job in self._jobs.values() if job.state is JobState.LEASED)
        return sorted(leased, key=lambda job: (job.deadline, job.seq))

    def _next_deadline(self):
        return next((job.deadline for job in self._leases()), None)

    def _end_expired(self, limit, random, now):
        expired = [job for job in self._leases() if job.deadline <= now][:limit]
        for n, job in enumerate(expired):
            self._record(job, lifecycle.expire(job, spread(random, n), now, self.options.retention))
        return [job.key for job in expired]

    async def reap(self, limit, random):
        return (await self._reap([(limit, random)]))[0]

    @batch
    def _reap(self, arguments, now):
        return contract.Reaped(self._end_expired(*arguments, now), now, self._next_deadline())

    # Reading --------------------------------------------------------------------------------------------------------

    @batch
    def get(self, key, now):
        job = self.find(key, now)
        return None if job is None else shown_job(job, now)

    async def standing(self, key):
        with self.lock:
            now, paused = self.clock.now(), key[:2] in self._paused
            job, visible = self.find(key, now), self._ready(key.tenant, key.queue, now, paused=True)[key.tenant]
            turns = self._ready(None, key.queue, now)
            return job and standing_of(shown_job(job, now), now, paused=paused, visible=visible, turns=turns)

    async def list(self, query):
        with self.lock:
            return list_page(self._of(query.tenant, query.queue or None), query, self.clock.now())

    async def stats(self, tenant, queues=None):
        with self.lock:
            now, paused = self.clock.now(), self._paused
            names = self.queue_names(tenant) if queues is None else queues
            return [queue_stats(name, self._of(tenant, name), now, paused=(tenant, name) in paused) for name in names]

    def queue_names(self, tenant):
        paused = {queue for owner, queue in self._paused if owner == tenant}
        return sorted({job.queue for job in self._of(tenant)} | paused)

    def tenants_with_jobs(self):
        return {key.tenant for key in self._jobs}

    def count_usage(self, tenant):
        sizes, keys = [weight(job) for job in self._of(tenant)], self.side.keys.count_lasting(tenant)
        size = sum(sizes) + keys * RECORD_BYTES
        return Usage(len(sizes), keys, size, len(self.queue_names(tenant)), self.side.log.kept(tenant))

    # Upkeep ----------------------------------------------------------------------------------------

    async def pause(self, tenant, queue, *, paused):
        with self.lock:
            (self._paused.add if paused else self._paused.discard)((tenant, queue))
            self.side.notifier.add(Hint.READY, tenant, queue)
            self.side.notifier.send()

    async def prune(self, limit, *, blobs=True):
        with self.lock:
            now, side = self.clock.now(), self.side
            forgotten = [job for job in self._jobs.values() if lifecycle.forgotten(job, now)]
            for job in forgotten[:limit]:
                self._forget(job)
            side.keys.drop_expired(now)
            names, side.dropped_blobs = (side.dropped_blobs, []) if blobs else ([], side.dropped_blobs)
            events = side.log.trim(self.options.keep_events, now)
            return contract.Pruned(min(limit, len(forgotten)), events, names, len(forgotten) > limit)

    async def doctor(self):
        return [contract.Finding("ok", "store", f"{len(self._jobs)} jobs in this process")]
