"""A queue of keys in which a key waits at most once, is worked on by one worker at a time, and backs off on errors.

It has two lanes: what somebody asks for goes before what is only to be looked at again.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

Key = tuple[str, str]

_FIRST_RETRY_SECONDS = 0.5
_LAST_RETRY_SECONDS = 60.0

# One turn in so many belongs to those that wait, so that a stream of urgent ones does not keep them for ever.
_TURNS = 4


class WorkQueue:
    """Coalesces events: however many arrive while a key waits, one pass follows.

    A key that gets dirty while it is worked on is worked on again afterwards, never at the same time.
    """

    def __init__(self, observe_depth: Callable[[int], None], observe_wait: Callable[[float], None]) -> None:
        self._urgent: OrderedDict[Key, float] = OrderedDict()
        self._waiting: OrderedDict[Key, float] = OrderedDict()
        self._active: set[Key] = set()
        self._again: dict[Key, bool] = {}
        self._failures: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._taken = 0.0
        self._turn = 0
        self._wake = asyncio.Condition()
        self._observe_depth = observe_depth
        self._observe_wait = observe_wait
        self._background: set[asyncio.Task[None]] = set()

    @property
    def stalled_seconds(self) -> float:
        """Seconds for which keys have waited and no worker has taken one: not how long the line is."""
        firsts = [next(iter(lane.values())) for lane in (self._urgent, self._waiting) if lane]
        return time.monotonic() - max(self._taken, min(firsts)) if firsts else 0.0

    def add(self, key: Key, *, urgent: bool = False) -> None:
        """Marks a key as dirty. Urgent ones come before all others, in the order in which they came."""
        if key in self._active:
            self._again[key] = urgent or self._again.get(key, False)
        elif key in self._waiting and urgent:
            self._urgent[key] = self._waiting.pop(key)
        elif key not in self._waiting and key not in self._urgent:
            lane = self._urgent if urgent else self._waiting
            lane[key] = time.monotonic()
            self._observe_depth(len(self._urgent) + len(self._waiting))
            task = asyncio.ensure_future(self._notify())
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    def add_after(self, key: Key, seconds: float) -> None:
        """Marks a key as dirty after a while. An earlier wish for the same key stands."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        timer = self._timers.get(key)
        if timer is not None and not timer.cancelled():
            if timer.when() <= due:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self._due, key)

    def forget(self, key: Key) -> None:
        """Drops what is remembered of a key that is gone."""
        self._failures.pop(key, None)
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()

    async def work(self, handle: Callable[[Key], Awaitable[bool]]) -> None:
        """One worker's loop. `handle` returns whether it succeeded; otherwise the key comes back later and later."""
        while True:
            key = await self._take()
            succeeded = False
            try:
                succeeded = await handle(key)
            finally:
                self._finish(key, succeeded)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def _notify(self) -> None:
        async with self._wake:
            self._wake.notify()

    async def _take(self) -> Key:
        async with self._wake:
            await self._wake.wait_for(lambda: bool(self._urgent or self._waiting))
            key, since = self._next_lane().popitem(last=False)
            self._active.add(key)
            self._taken = time.monotonic()
            self._observe_depth(len(self._urgent) + len(self._waiting))
            self._observe_wait(self._taken - since)
            return key

    def _next_lane(self) -> OrderedDict[Key, float]:
        self._turn = (self._turn + 1) % _TURNS
        first, second = (self._urgent, self._waiting) if self._turn else (self._waiting, self._urgent)
        return first or second

    def _finish(self, key: Key, succeeded: bool) -> None:
        self._active.discard(key)
        if succeeded:
            self._failures.pop(key, None)
        else:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            self.add_after(key, min(_FIRST_RETRY_SECONDS * 2 ** (failures - 1), _LAST_RETRY_SECONDS))
        if (urgent := self._again.pop(key, None)) is not None:
            self.add(key, urgent=urgent)
