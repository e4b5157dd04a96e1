"""The service as if it were a store: a client with a token for each tenant, and a side door for the rest.

Every job is enqueued, claimed, finished, looked at, listed, canceled, replayed, purged and followed over HTTP. Through
the side door goes what a client has no say in: the clock, the upkeep, an operator's settings, readers and fleet. A
payload or result of a check that is no JSON goes as a string of JSON. A token that a check took from elsewhere than a
claim of this job gets its proof by the side door. It has no `post`: what is brought to a worker over HTTP is the answer
to one claim that waits, and the checks of deliveries have room for several.
"""

import asyncio
import base64
import subprocess
import sys
import threading

import msgspec
from msgspec.structs import replace

from holdfast.core.job import AlreadyCompleted, Claimed, Finish, Job, JobKey, NewJob
from holdfast.opening import make_store
from holdfast.store import ALL_HINTS, EventPage, Pruned, Reader, Reaped, Signal, TenantSettings
from holdfast.stores.http.outgoing import Fence

MARK = b'"bytes:'


def packed(item):
    """An item whose payload or result is sent over HTTP: bytes that are not JSON as a string of JSON."""
    if isinstance(item, NewJob):
        return replace(item, envelope=replace(item.envelope, payload=_text(item.envelope.payload, item.envelope.codec)))
    if isinstance(item, Finish) and item.result is not None:
        return replace(item, result=replace(item.result, data=_text(item.result.data, item.result.codec)))
    return item


def unpacked(answer):
    """The same answer with the bytes that were sent."""
    if isinstance(answer, AlreadyCompleted):
        return replace(answer, result=replace(answer.result, data=_bytes(answer.result.data)))
    if isinstance(answer, Job):
        result = answer.result and replace(answer.result, data=_bytes(answer.result.data))
        return replace(
            answer, envelope=replace(answer.envelope, payload=_bytes(answer.envelope.payload)), result=result
        )
    return answer


def _text(data, codec):
    try:
        if codec == "json":
            msgspec.json.decode(data)
        return data
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return MARK + base64.b64encode(data) + b'"'


def _bytes(data):
    return base64.b64decode(data[len(MARK) : -1]) if data.startswith(MARK) else data


class Behind:
    """The process of `tests.service.behind`."""

    def __init__(self):
        command = [sys.executable, "-m", "tests.service.behind"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lock = threading.Lock()
        self.handles = {}
        """The handles on each store: a listener at one gets the hints of the tenants of all."""

    def ask(self, do, url, **more):
        with self._lock:
            self._process.stdin.write(msgspec.json.encode({"do": do, "url": url, **more}) + b"\n")
            self._process.stdin.flush()
            answer = msgspec.json.decode(self._process.stdout.readline())
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["value"]

    def close(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


class Tenants:
    """A store made of clients. Mixed batches are split by tenant and joined again."""

    def __init__(self, behind, url):
        self._behind = behind
        self._url = url
        self._clients = {}
        self._listeners = {}
        self._granted = set()
        """Leases that were granted over HTTP: their tokens have proofs."""
        self._port = None
        self._lock = asyncio.Lock()
        self._loop = None

    @property
    def capabilities(self):
        return next(iter(self._clients.values()), make_store("http://localhost")).capabilities

    async def open(self):
        self._port = await self._door("open")
        self._loop = asyncio.get_running_loop()
        beside = self._behind.handles.setdefault(self._url, [])
        for tenant in {tenant for other in beside for tenant in other._clients}:
            await self.of(tenant, alone=True)
        beside.append(self)

    async def close(self):
        beside = self._behind.handles.get(self._url, [])
        if self in beside:
            beside.remove(self)
        for client in self._clients.values():
            await client.close()
        self._clients.clear()

    async def sibling(self):
        other = Tenants(self._behind, self._url)
        other._port = self._port
        other._clients = {tenant: await client.sibling() for tenant, client in self._clients.items()}
        return other

    def listen(self, listener, hints=ALL_HINTS):
        number = object()
        self._listeners[number] = listener, hints, [client.listen(listener, hints) for client in self._clients.values()]

        def stop():
            for one in self._listeners.pop(number, (None, None, ()))[2]:
                one()

        return stop

    async def of(self, tenant, *, alone=False):
        assert tenant is not None, "a token is one tenant's"
        async with self._lock:
            is_new = tenant not in self._clients
            if is_new:
                client = make_store(f"http://127.0.0.1:{self._port}")
                client.use_token(await self._door("token", tenant=tenant))
                await client.open()
                self._clients[tenant] = client
                for listener, hints, stops in self._listeners.values():
                    stops.append(client.listen(listener, hints))
        for other in self._behind.handles.get(self._url, ()) if is_new and not alone else ():
            if other is not self and other._loop is self._loop:
                await other.of(tenant, alone=True)
        return self._clients[tenant]

    async def _batch(self, verb, items, **more):
        keys = [item if isinstance(item, JobKey) else item.key for item in items]
        answers = [None] * len(items)
        for tenant in dict.fromkeys(key.tenant for key in keys):
            places = [n for n, key in enumerate(keys) if key.tenant == tenant]
            reported = await getattr(await self.of(tenant), verb)([items[n] for n in places], **more)
            for n, answer in zip(places, reported, strict=True):
                answers[n] = answer
        return answers

    async def enqueue(self, items, **more):
        return list(map(unpacked, await self._batch("enqueue", list(map(packed, items)), **more)))

    async def finish(self, items, *, connection=None):
        return await self._batch("finish", list(map(packed, await self._proved(items))), connection=connection)

    async def extend(self, items):
        return await self._batch("extend", await self._proved(items))

    async def report(self, items):
        return await self._batch("report", await self._proved(items))

    async def _proved(self, items):
        """The same with proofs: the checks also take tokens from records, and from one job for another. [LEASE-1]"""
        has = [isinstance(item.token, Fence) and (item.key, item.token) in self._granted for item in items]
        places = [n for n in range(len(items)) if not has[n]]
        leases = [(*items[n].key, int(items[n].token)) for n in places]
        proofs = await self._door("prove", leases=leases) if leases else []
        proved = list(items)
        for n, proof in zip(places, proofs, strict=True):
            proved[n] = replace(items[n], token=Fence(items[n].token, proof))
        return proved

    async def cancel(self, items):
        return await self._batch("cancel", items)

    async def replay(self, items, **more):
        return await self._batch("replay", items, **more)

    async def purge(self, items):
        return await self._batch("purge", items)

    async def set_result_ttl(self, items):
        return await self._batch("set_result_ttl", items)

    async def get(self, keys):
        return list(map(unpacked, await self._batch("get", keys)))

    async def claim(self, request):
        if request.tenant is None:
            # A fleet for all tenants works at the store, beside the service.
            wish = msgspec.to_builtins(request)
            claimed = msgspec.convert(await self._door("claim", request=wish), Claimed)
        else:
            claimed = await (await self.of(request.tenant)).claim(request)
            self._granted.update((job.key, job.token) for job in claimed.jobs)
        return replace(claimed, jobs=list(map(unpacked, claimed.jobs)))

    async def list(self, query):
        page = await (await self.of(query.tenant)).list(query)
        return replace(page, jobs=list(map(unpacked, page.jobs)))

    async def stats(self, tenant, queues=None):
        return await (await self.of(tenant)).stats(tenant, queues)

    async def queue_page(self, tenant, cursor=None, limit=100):
        return await (await self.of(tenant)).queue_page(tenant, cursor, limit)

    async def events(self, tenant, after, limit):
        if tenant is None:
            page = msgspec.convert(await self._door("events", tenant=None, after=after, limit=limit), EventPage)
        else:
            page = await (await self.of(tenant)).events(tenant, after, limit)
        for event in page.events:
            event.data.pop("by", None)  # The service names the token.
        return page

    async def last_offset(self):
        return await (await self.of("any")).last_offset()

    async def now(self):
        return await (await self.of("any")).now()

    async def pause(self, tenant, queue, *, paused):
        await (await self.of(tenant)).pause(tenant, queue, paused=paused)

    async def beat(self, worker, ttl_ms):
        await self._door("beat", worker=msgspec.to_builtins(worker), ttl_ms=ttl_ms)

    async def explain(self, key):
        return await (await self.of(key.tenant)).explain(key)

    async def usage(self, tenant):
        return await (await self.of(tenant)).usage(tenant)

    async def workers(self, tenant):
        return await (await self.of(tenant)).workers(tenant)

    async def worker_page(self, tenant, cursor=None, limit=100):
        return await (await self.of(tenant)).worker_page(tenant, cursor, limit)

    async def tenant_page(self, cursor=None, limit=100):
        return await (await self.of("any")).tenant_page(cursor, limit)

    # The side door ------------------------------------------------------------------------------------------------

    async def shift_clock(self, ms):
        await self._door("shift_clock", ms=ms)
        # As a store does: after a short wait, look again.
        for store in self._behind.handles.get(self._url, ()):
            for listener, hints, _ in list(store._listeners.values()):
                for hint in hints:
                    listener(Signal(hint))

    async def reap(self, limit, random):
        reaped = await self._door("reap", limit=limit, random=random)
        return Reaped([JobKey(*key) for key in reaped["jobs"]], reaped["now"], reaped["next_at"])

    async def prune(self, limit, *, blobs=True):
        return Pruned(**await self._door("prune", limit=limit, blobs=blobs))

    async def tenants(self):
        return await self._door("tenants")

    async def set_tenant(self, tenant, settings):
        await self._door("set_tenant", tenant=tenant, settings=msgspec.to_builtins(settings))

    async def tenant_settings(self, tenant):
        return [msgspec.convert(one, TenantSettings) for one in await self._door("tenant_settings", tenant=tenant)]

    async def set_reader(self, reader):
        await self._door("set_reader", reader=msgspec.to_builtins(reader))

    async def drop_reader(self, tenant, name):
        return await self._door("drop_reader", tenant=tenant, name=name)

    async def readers(self, tenant):
        return [msgspec.convert(one, Reader) for one in await self._door("readers", tenant=tenant)]

    async def doctor(self):
        return []

    async def _door(self, do, **more):
        return await asyncio.to_thread(self._behind.ask, do, self._url, **more)
