"""How transactions run: at an instant of the store clock, and again after a conflict, but with one effect only.

The outcome of a commit can be unknown. So each transaction that makes events writes a nonce of its own to the log. If
the nonce is there, the change was made and the answer is right. If not, nothing was changed, and the transaction runs
again. So no claim is made twice. Transactions without events may run twice, as they only set values.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from secrets import token_bytes
from typing import TypeVar

from msgspec.structs import replace

from holdfast.core.errors import StoreBusy, StoreError, StoreMismatch, StoreUnavailable
from holdfast.stores.foundationdb import clock, entries, numbers
from holdfast.stores.foundationdb.awaiting import together
from holdfast.stores.foundationdb.clock import Anchor, Witness
from holdfast.stores.foundationdb.database import (
    COMMIT_UNKNOWN_RESULT,
    DATABASE_LOCKED,
    FUTURE_VERSION,
    MAYBE_APPLIED,
    NOT_COMMITTED,
    PROCESS_BEHIND,
    RETRYABLE,
    TRANSACTION_TOO_LARGE,
    TRANSACTION_TOO_OLD,
    Database,
    FdbError,
    FdbTransaction,
)
from holdfast.stores.foundationdb.keyspace import Keyspace, span
from holdfast.stores.foundationdb.records import number
from holdfast.stores.foundationdb.settings import SettingsCache
from holdfast.stores.foundationdb.unit_of_work import Here, Moment, Rules, Work

FORMAT = 1
"""The version of the layout."""
GIVE_UP_S = 30.0
"""How long a transaction that conflicts is tried again."""
SLOW = frozenset({TRANSACTION_TOO_OLD, FUTURE_VERSION, PROCESS_BEHIND})
"""The errors of a transaction that took too long, or asked servers that lag."""
SLOW_TRIES = 3
"""How often a transaction that can be split is tried before it is."""
SEARCH = 500
"""Entries of the log that are read at a time to find a nonce."""

T = TypeVar("T")
Body = Callable[[Work], Awaitable[T]]


class TooMuch(Exception):
    """A transaction was too large or too slow: it must be split."""


class Transactions:
    """Runs transactions on one database, for one store."""

    def __init__(self, database: Database, keys: Keyspace, rules: Rules, place: str) -> None:
        self.database = database
        self.keys = keys
        self.witness = Witness()
        self.tokens = numbers.LeaseTokens(self.take_block)
        self.settings = SettingsCache()
        self.conflicts = 0
        """How many commits had a conflict, and ran again."""
        self._here = Here(keys, rules, self.settings, place)

    async def change(
        self,
        body: Body[T],
        *,
        conflicted: Callable[[], None] | None = None,
        was_made: Callable[[FdbTransaction, T], Awaitable[bool]] | None = None,
        give_up_s: float = GIVE_UP_S,
        can_split: bool = False,
    ) -> T:
        """Run `body` and commit what it did. It may run several times: it changes nothing but its transaction.

        `was_made` says after an unknown outcome whether a change without events was made. Raises TooMuch if the caller
        can split what it wants to do.
        """
        tries = _Tries(give_up_s, can_split=can_split)
        nonce = token_bytes(entries.NONCE_BYTES)
        transaction = self.database.transaction()
        while True:
            work: Work | None = None
            answers: list[T] = []
            try:
                work = await self.begin(transaction, nonce)
                answers.append(await body(work))
                if await work.flush():
                    await transaction.commit()
                return answers[0]
            except FdbError as error:
                if error.code in MAYBE_APPLIED and work is not None and answers:
                    if error.code != COMMIT_UNKNOWN_RESULT:
                        raise StoreUnavailable(f"it is unknown whether the change was made: {error}") from error
                    if work.logged and await self._is_logged(work):
                        return answers[0]
                    if was_made is not None and await self._ask(was_made, answers[0]):
                        return answers[0]
                elif error.code == NOT_COMMITTED:
                    self.conflicts += 1
                    if conflicted is not None:
                        conflicted()
                tries.failed(error)
                await self._again(transaction, error)

    async def read(self, body: Body[T], *, can_split: bool = False) -> T:
        """Run `body`, which only reads."""
        tries = _Tries(GIVE_UP_S, can_split=can_split)
        transaction = self.database.transaction()
        while True:
            try:
                return await body(await self.begin(transaction))
            except FdbError as error:
                tries.failed(error)
                await self._again(transaction, error)

    async def read_some(self, body: Callable[[Work, int], Awaitable[T]], count: int) -> tuple[T, int]:
        """Run a body that reads up to `count` items, or fewer if those are too many. Returns how many it was, too."""
        while True:
            wanted = count
            try:
                return await self.read(lambda work: body(work, wanted), can_split=wanted > 1), wanted  # noqa: B023
            except TooMuch:
                count = max(1, count // 2)

    async def begin(self, transaction: FdbTransaction, nonce: bytes = b"", *, joined: bool = False) -> Work:
        """What a transaction knows at its beginning: its version, the time, the settings' version."""
        while True:
            version, rows = await together(
                transaction.get_read_version(), transaction.get_range(*span(self.keys.meta), snapshot=True)
            )
            meta = {self.keys.parts(key, self.keys.meta)[0]: value for key, value in rows}
            if "clock" not in meta:
                raise StoreUnavailable("the store has been erased; open it again")
            anchor = clock.decode(meta["clock"])
            if joined or not anchor.is_old(version):
                break
            await self._renew()
            transaction.reset()
        self.witness.saw(version)
        self.settings.check(number(meta.get("settings")))
        trimmed = meta.get("trimmed", entries.START)
        moment = Moment(anchor, version, trimmed, number(meta.get("last_token")))
        return Work(transaction, self._here, moment, nonce)

    # The clock --------------------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        """Renew the anchor of the clock, unless another process does."""

        async def renew(transaction: FdbTransaction, anchor: Anchor, version: int) -> None:
            if anchor.is_old(version):
                self.set_anchor(transaction, self.witness.renewed(anchor, version))

        await self.change_anchor(renew)

    async def tick(self) -> None:
        """Commit something, so that versions advance on an idle cluster."""

        async def move(transaction: FdbTransaction, anchor: Anchor, version: int) -> None:
            if not anchor.frozen:
                self.set_anchor(transaction, self.witness.renewed(anchor, version))

        await self.change_anchor(move)

    async def shift(self, ms: int) -> None:
        """Move the clock, for tests."""
        wanted: list[int] = []

        async def move(transaction: FdbTransaction, anchor: Anchor, _: int) -> None:
            if wanted and anchor.shift == wanted[-1]:
                return  # The outcome of the first try was unknown: it was made.
            wanted.append(anchor.shift + ms)
            self.set_anchor(transaction, replace(anchor, shift=anchor.shift + ms))
            self.notify_all(transaction)

        await self.change_anchor(move)

    async def change_anchor(self, body: Callable[[FdbTransaction, Anchor, int], Awaitable[None]]) -> None:
        """Read the anchor and change it. After a conflict another process has changed it: it is read again."""
        transaction = self.database.transaction()
        while True:
            try:
                version, raw = await together(
                    transaction.get_read_version(), transaction.get(self.keys.meta_of("clock"))
                )
                if raw is None:
                    raise StoreUnavailable("the store has been erased; open it again")
                await body(transaction, clock.decode(raw), version)
                await transaction.commit()
                self.witness.saw(version)
                if (made := transaction.committed_version()) > 0:
                    self.witness.made(made)
                return
            except FdbError as error:
                await self._again(transaction, error)

    def set_anchor(self, transaction: FdbTransaction, anchor: Anchor) -> None:
        transaction.set(self.keys.meta_of("clock"), clock.encode(anchor))

    def notify_all(self, transaction: FdbTransaction) -> None:
        """Notify all listeners of a change without an event."""
        transaction.add(self.keys.meta_of("notified"), 1)

    # Tokens ---------------------------------------------------------------------------------------------------------

    async def take_block(self, count: int, above: int) -> range:
        """Take a block of tokens from the counter. One with an unknown outcome is left, and another one taken."""
        key = self.keys.meta_of("tokens")
        transaction = self.database.transaction()
        while True:
            try:
                version, raw = await together(transaction.get_read_version(), transaction.get(key))
                block = numbers.block(number(raw), version, count, above)
                transaction.set(key, block.stop.to_bytes(8, "little"))
                await transaction.commit()
            except FdbError as error:
                await self._again(transaction, error)
            else:
                return block

    # Creating ---------------------------------------------------------------------------------------------------------

    async def create(self, *, frozen: bool) -> None:
        """Check the store's data, or create what is missing. Raises StoreMismatch."""
        transaction = self.database.transaction()
        while True:
            try:
                created = await self._create(transaction, frozen=frozen)
                await transaction.commit()
                if created:
                    return
                transaction.reset()
            except FdbError as error:
                await self._again(transaction, error)

    async def _create(self, transaction: FdbTransaction, *, frozen: bool) -> bool:
        """One step. Returns whether it was the last one."""
        keys = self.keys
        made, raw, version, first = await together(
            transaction.get(keys.meta_of("format")),
            transaction.get(keys.meta_of("clock")),
            transaction.get_read_version(),
            transaction.get_range(*span(keys.root), limit=1),
        )
        if made is None and first:
            raise StoreMismatch("there are other keys under this prefix; choose another one (prefix=)")
        if made is not None and number(made) != FORMAT:
            raise StoreMismatch(f"the data has format {number(made)}, this version of Holdfast has {FORMAT}")
        if made is None:
            # Commit this first: the versions of an idle cluster lag, and a clock set by such a version would be ahead.
            transaction.set(keys.meta_of("format"), FORMAT.to_bytes(8, "little"))
            return False
        if raw is None:
            self.set_anchor(transaction, clock.first_anchor(version, frozen=frozen))
        elif clock.decode(raw).frozen != frozen:
            raise StoreMismatch(f"the store was made {'without' if frozen else 'with'} test_clock=frozen")
        return True

    async def erase(self) -> None:
        """Remove everything under the prefix."""
        transaction = self.database.transaction()
        while True:
            try:
                transaction.clear_range(*span(self.keys.root))
                await transaction.commit()
                return
            except FdbError as error:
                await self._again(transaction, error)

    # Errors -----------------------------------------------------------------------------------------------------------

    async def _is_logged(self, work: Work) -> bool:
        """Whether a transaction with an unknown outcome is in the log. It is no longer under way."""
        begin, end = self.keys.log_at(entries.at_version(work.version)), span(self.keys.log)[1]
        transaction = self.database.transaction()
        while True:
            try:
                rows = await transaction.get_range(begin, end, limit=SEARCH, snapshot=True)
            except FdbError as failed:
                await self._again(transaction, failed)
                continue
            if any(entries.nonce_of(value) == work.nonce for _, value in rows):
                return True
            if len(rows) < SEARCH:
                return False
            begin = rows[-1][0] + b"\x00"

    async def _ask(self, was_made: Callable[[FdbTransaction, T], Awaitable[bool]], answer: T) -> bool:
        transaction = self.database.transaction()
        while True:
            try:
                return await was_made(transaction, answer)
            except FdbError as failed:
                await self._again(transaction, failed)

    async def _again(self, transaction: FdbTransaction, error: FdbError) -> None:
        """Get ready to run again, or raise what the caller should know."""
        if error.code not in RETRYABLE:
            raise self._translate(error) from error
        try:
            await transaction.on_error(error)
        except FdbError as final:
            raise self._translate(final) from final

    def _translate(self, error: FdbError) -> StoreError:
        if error.code == TRANSACTION_TOO_LARGE:
            return StoreBusy(f"a batch is too large for one transaction; send fewer items: {error}")
        if error.code == DATABASE_LOCKED:
            return StoreUnavailable(f"the database is locked: {error}")
        return StoreUnavailable(f"FoundationDB: {error}")


class _Tries:
    """How long a transaction is tried again."""

    def __init__(self, give_up_s: float, *, can_split: bool) -> None:
        self._until = time.monotonic() + give_up_s
        self._can_split = can_split
        self._slow = 0

    def failed(self, error: FdbError) -> None:
        """Raise if it should not be tried again."""
        self._slow += error.code in SLOW
        if self._can_split and (self._slow >= SLOW_TRIES or error.code == TRANSACTION_TOO_LARGE):
            raise TooMuch from error
        if time.monotonic() > self._until:
            raise StoreBusy(f"FoundationDB did not take a transaction for {GIVE_UP_S:g} s: {error}") from error
