"""The link to the server: every command of the store goes through here, and every error becomes one of ours.

A script runs by its hash, and by its text where the server does not know it. Whether a call may be sent again after a
lost connection is said by whoever makes it, with `repeat`; after a timeout nothing is ever sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, Self, cast

from redis.asyncio import Redis, RedisCluster
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, NoScriptError, ReadOnlyError, ResponseError
from redis.exceptions import TryAgainError as TryAgain

from holdfast.core.errors import StoreError
from holdfast.stores.redis.address import Address, Kind
from holdfast.stores.redis.connection import Argument, Setup, Wire, pack, setup_for, setup_of
from holdfast.stores.redis.errors import TROUBLES, is_lost, translate
from holdfast.stores.redis.pool import Pool
from holdfast.stores.redis.routes import Route, route_for

PAUSE_S = 0.05
"""How long to wait before something is sent again."""

REDIRECTS = 8
"""How often a cluster may send a command on before we give up."""

Call = tuple[str | bytes, Sequence[Argument]]
"""A key and arguments for a script."""
_Call = tuple[bytes, Sequence[Argument]]


class Script(Protocol):
    """A Lua script: its text, and the SHA-1 of it in hex."""

    @property
    def sha(self) -> str: ...
    @property
    def text(self) -> str: ...


class Link:
    """One handle's connections to a server or cluster, for one event loop. Connects when first used."""

    def __init__(self, address: Address | Setup) -> None:
        self._setup = address if isinstance(address, Setup) else setup_for(address)
        self._route: Route = route_for(self._setup)

    @classmethod
    def of_client(
        cls, client: Redis | RedisCluster, *, timeout_s: float = 5, connect_timeout_s: float = 5, connections: int = 32
    ) -> Self:
        """A link with the address and the credentials of a client, which is itself neither used nor closed.

        The connections are our own: a client sends again what was lost, and not every call may be sent twice.
        """
        setup = setup_of(client, timeout_s=timeout_s, connect_timeout_s=connect_timeout_s, connections=connections)
        return cls(setup)

    @property
    def shown(self) -> str:
        """The server's address for people, without the password."""
        return self._setup.shown

    @property
    def connections(self) -> int:
        """The most connections to one server."""
        return self._setup.connections

    @property
    def timeout_s(self) -> float:
        """How long to wait for an answer."""
        return self._setup.timeout_s

    @property
    def is_cluster(self) -> bool:
        return self._setup.kind is Kind.CLUSTER

    def sibling(self) -> Link:
        """A link to the same place, for another event loop."""
        return Link(self._setup)

    async def open(self) -> None:
        """Make sure that the server is there and lets us in. Raises StoreUnavailable."""
        await self.command(b"", "PING", repeat=True)

    async def close(self) -> None:
        """Close every connection. What is under way fails. Twice is harmless."""
        await self._route.close()

    async def run(
        self, script: Script, key: str | bytes, args: Sequence[Argument], *, repeat: bool, others_first: bool = False
    ) -> Any:
        """Run a script where `key` lives.

        `repeat` says that running it twice does what running it once does: then a lost connection is tried once more.
        `others_first`: whoever the script publishes to is written to before us, see `_PING`.
        Raises StoreUnavailable or StoreBusy.
        """
        key = _bytes(key)
        before, count = (_PING, 2) if others_first else (b"", 1)
        try:
            packed = before + pack(b"EVALSHA", script.sha, *self._named(key), *args)
            answer = (await self._guarded(key, packed, count, repeat=repeat, follow=False))[-1]
            if isinstance(answer, NoScriptError):
                # It did not run, so that sending it again is safe for any script.
                packed = before + pack(b"EVAL", script.text, *self._named(key), *args)
                answer = (await self._guarded(key, packed, count, repeat=repeat, follow=False))[-1]
            return _checked(answer)
        except TROUBLES as error:
            raise self._trouble(error) from error

    async def run_many(self, script: Script, calls: Sequence[Call], *, repeat: bool) -> list[Any]:
        """Run a script for each call, in order as far as they go to the same server; the answers in order.

        On a cluster: in order for each slot, slots side by side. If any fails, that is raised, and others may be done.
        """
        groups: dict[int, list[int]] = {}
        keyed = [(_bytes(key), args) for key, args in calls]
        for position, (key, _) in enumerate(keyed):
            groups.setdefault(self._route.group(key), []).append(position)
        parts = list(groups.values())
        work = [self._run_group(script, [keyed[n] for n in part], repeat=repeat) for part in parts]
        done = [await work[0]] if len(work) == 1 else await asyncio.gather(*work, return_exceptions=True)
        answers: list[Any] = [None] * len(calls)
        for part, outcome in zip(parts, done, strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            for position, answer in zip(part, outcome, strict=True):
                answers[position] = answer
        return answers

    async def command(self, key: str | bytes, *args: Argument, repeat: bool = False) -> Any:
        """Run a plain command at the server that has `key`. Raises as `run` does."""
        try:
            return _checked(await self._one(_bytes(key), pack(*args), repeat=repeat))
        except TROUBLES as error:
            raise self._trouble(error) from error

    async def each(self, *args: Argument) -> list[tuple[str, Any]]:
        """Run a command at every primary: its name and its answer, None where it refuses."""
        try:
            answers: list[tuple[str, Any]] = []
            for name, pool in await self._route.primaries():
                answer = (await self._exchange(pool, pack(*args), 1))[0]
                answers.append((name, None if isinstance(answer, ResponseError) else answer))
            return answers
        except TROUBLES as error:
            raise self._trouble(error) from error

    async def info(self) -> list[tuple[str, dict[str, str]]]:
        """INFO of every primary, by its name; empty where the server forbids it."""
        return [(name, _parse_info(answer or b"")) for name, answer in await self.each("INFO", "all")]

    async def config_get(self, name: str) -> str | None:
        """A setting of the server (of the first one in a cluster); None if it does not tell or does not have it."""
        for _, answer in await self.each("CONFIG", "GET", name):
            return cast("bytes", answer[1]).decode() if answer else None
        return None

    async def slot_owners(self, keys: Sequence[str | bytes]) -> list[tuple[int, str]]:
        """For each key its slot and the name of the server that has it."""
        try:
            names = {id(pool): name for name, pool in await self._route.primaries()}
            pools = [await self._route.pool(_bytes(key)) for key in keys]
            return [(key_slot(_bytes(key)), names.get(id(p), "")) for key, p in zip(keys, pools, strict=True)]
        except TROUBLES as error:
            raise self._trouble(error) from error

    async def dial(self) -> Wire:
        """A connection of its own, outside of the pool, for whoever closes it. Raises StoreUnavailable."""
        try:
            return await self._route.dial()
        except TROUBLES as error:
            raise self._trouble(error) from error

    async def distrust(self) -> None:
        """A line was found dead: the others of this handle may be, too, and are not used again. Does not suspend."""
        await self._route.distrust()

    async def _run_group(self, script: Script, calls: Sequence[_Call], *, repeat: bool) -> list[Any]:
        """Run calls in order at one server.

        In a transaction, since otherwise the script could come to be known between two calls: the first would be
        turned away and the second run before it. So all are turned away or none.
        """
        if len(calls) == 1:
            return [await self.run(script, *calls[0], repeat=repeat)]
        try:
            answers = await self._transaction(script, calls, known=True, repeat=repeat)
            if isinstance(answers[0], NoScriptError):
                answers = await self._transaction(script, calls, known=False, repeat=repeat)
            return [_checked(answer) for answer in answers]
        except TROUBLES as error:
            raise self._trouble(error) from error

    async def _transaction(self, script: Script, calls: Sequence[_Call], *, known: bool, repeat: bool) -> list[Any]:
        first = (b"EVALSHA", script.sha) if known else (b"EVAL", script.text)
        parts = [_MULTI]
        for position, (key, args) in enumerate(calls):
            head = (b"EVALSHA", script.sha) if position else first
            parts.append(pack(*head, *self._named(key), *args))
        parts.append(_EXEC)
        answers = await self._guarded(calls[0][0], b"".join(parts), len(parts), repeat=repeat, follow=False)
        for answer in answers:
            _checked(answer)  # One that could not be queued comes before the EXECABORT that it causes.
        return cast("list[Any]", answers[-1])

    def _named(self, key: bytes) -> tuple[bytes, ...]:
        """The keys that a script names, after their number.

        While a slot moves key by key, its old node refuses every key that is gone, also one that a script has just
        emptied: the script would end half-way. So on a cluster each script also names a key of its slot that never
        exists: while the slot moves, the node refuses the call before the script begins.
        """
        if not self.is_cluster:
            return (b"1", key)
        return (b"2", key, key + b"?" if b"{" in key else b"{" + key + b"}?")

    async def _one(self, key: bytes, packed: bytes, *, repeat: bool) -> Any:
        return (await self._guarded(key, packed, 1, repeat=repeat))[0]

    async def _guarded(self, key: bytes, packed: bytes, count: int, *, repeat: bool, follow: bool = True) -> list[Any]:
        """Send it; once more if that is safe and the connection was lost or the server is no primary any more."""
        try:
            answers = await self._send(key, packed, count, follow=follow)
        except TROUBLES as error:
            if not repeat or not is_lost(error):
                raise
        else:
            if not isinstance(_refusal(answers), ReadOnlyError):
                return answers
        await asyncio.sleep(PAUSE_S)
        return await self._send(key, packed, count, follow=follow)

    async def _send(self, key: bytes, packed: bytes, count: int, *, follow: bool) -> list[Any]:
        """Send one command, or one transaction, to where it belongs; go where a cluster sends us.

        Unless `follow`, not to where one key is already while others are still on their way: a script that uses more
        than the one key it names would take those for empty. It waits until the slot has moved as a whole.
        """
        pool = await self._route.pool(key)
        answers = await self._exchange(pool, packed, count)
        for _ in range(REDIRECTS):
            refusal = _refusal(answers)
            if refusal is None:
                break
            # All of these say that nothing was done.
            if isinstance(refusal, AskError) and not isinstance(refusal, MovedError) and not follow:
                await asyncio.sleep(PAUSE_S)
                answers = await self._exchange(await self._route.pool(key), packed, count)
            elif isinstance(refusal, AskError):
                moved = isinstance(refusal, MovedError)
                target = await self._route.redirect(refusal, moved=moved)
                if target is None:
                    break
                if moved:
                    answers = await self._exchange(target, packed, count)
                else:
                    answers = (await self._exchange(target, _ASKING + packed, count + 1))[1:]
            elif isinstance(refusal, TryAgain):
                await asyncio.sleep(PAUSE_S)
                answers = await self._exchange(await self._route.pool(key), packed, count)
            else:
                await self._route.lost(pool)
                break
        return answers

    async def _exchange(self, pool: Pool, packed: bytes, count: int) -> list[Any]:
        """Send commands on a connection of the pool and read as many answers; errors among them are values."""
        try:
            wire = await pool.take()
            try:
                answers = await wire.exchange(packed, count, self._setup.timeout_s)
            except BaseException:
                # Also when canceled: an answer may be half read, or still come.
                await pool.discard(wire)
                raise
        except TROUBLES:
            await self._route.lost(pool)
            raise
        await pool.give(wire)
        return answers

    def _trouble(self, error: BaseException) -> StoreError:
        return translate(error, self._setup.shown, self._setup.timeout_s)


_REFUSALS = (AskError, TryAgain, ClusterDownError, ReadOnlyError)
_MULTI = pack("MULTI")
_EXEC = pack("EXEC")
_ASKING = pack("ASKING")
_PING = pack("PING")
"""The server writes first to whom it had something for last. A script's own answer comes after what it published, and
so would go out before it; with the answer to this one in wait we are the last in line. (ADR 9)"""


def _refusal(answers: list[Any]) -> Exception | None:
    """What says that nothing was done, not there or not now: a command's answer, or one in a transaction's."""
    inner = cast("list[Any]", answers[-1]) if len(answers) > 1 and isinstance(answers[-1], list) else []
    return next((answer for answer in (*answers, *inner) if isinstance(answer, _REFUSALS)), None)


def _bytes(key: str | bytes) -> bytes:
    return key if isinstance(key, bytes) else key.encode()


def _checked(answer: Any) -> Any:
    if isinstance(answer, ResponseError):
        raise answer
    return answer


def _parse_info(text: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines() if line[:1] not in ("", "#"))
    return {name: value for name, _, value in lines}
