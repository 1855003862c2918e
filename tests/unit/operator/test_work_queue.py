"""The order in which objects are looked at."""

import asyncio
from types import SimpleNamespace

from glm5_operator.work_queue import WorkQueue

A, B, C = ("models", "a"), ("models", "b"), ("models", "c")


def order(fill, handle=None):
    """Keys in the order in which one worker takes them after `fill(queue)`."""

    async def run():
        queue = WorkQueue(lambda depth: None, lambda wait: None)
        taken = []

        async def one(key):
            taken.append(key)
            return handle(queue, key, taken) if handle else True

        fill(queue)
        worker = asyncio.create_task(queue.work(one))
        await asyncio.sleep(0.05)
        for _ in range(20):  # on a slow machine a timer that is due may have been heard only now
            await asyncio.sleep(0)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        assert queue.stalled_seconds == 0
        return taken

    return asyncio.run(run())


def test_however_often_a_key_is_added_it_is_taken_once():
    assert order(lambda queue: [queue.add(key) for key in (A, B, A, A)]) == [A, B]


def test_what_somebody_asks_for_comes_before_what_is_only_looked_at_again():
    def fill(queue):
        queue.add(A)
        queue.add(B, urgent=True)
        queue.add(C, urgent=True)

    assert order(fill) == [B, C, A]


def test_a_stream_of_urgent_keys_does_not_keep_the_others_for_ever():
    urgent = [("models", f"urgent-{number}") for number in range(10)]

    def fill(queue):
        queue.add(A)
        for key in urgent:
            queue.add(key, urgent=True)

    taken = order(fill)
    assert sorted(taken) == sorted([A, *urgent])
    assert 1 <= taken.index(A) <= 4


def test_a_waiting_key_that_gets_urgent_is_taken_once_and_early():
    def fill(queue):
        queue.add(A)
        queue.add(B)
        queue.add(B, urgent=True)
        queue.add(B)

    assert order(fill) == [B, A]


def test_a_key_that_gets_urgent_while_it_is_worked_on_comes_before_the_others_again():
    def handle(queue, key, taken):
        if taken == [A]:
            queue.add(B)
            queue.add(A, urgent=True)
            queue.add(A)
        return True

    assert order(lambda queue: queue.add(A), handle) == [A, A, B]


def test_events_within_a_while_make_one_pass():
    def fill(queue):
        for _ in range(5):
            queue.add_after(A, 0.01)

    assert order(fill) == [A]


def test_a_pass_that_fails_comes_back_later_than_all_that_waits(monkeypatch):
    monkeypatch.setattr("glm5_operator.work_queue._FIRST_RETRY_SECONDS", 60.0)

    def handle(queue, key, taken):
        return not (key == A and taken.count(A) == 1)

    taken = order(lambda queue: [queue.add(A), queue.add(B)], handle)
    assert taken == [A, B], "the failed one waits a minute"


def test_a_long_line_that_moves_is_no_standstill(monkeypatch):
    now = 1000.0
    monkeypatch.setattr("glm5_operator.work_queue.time", SimpleNamespace(monotonic=lambda: now))

    async def run():
        nonlocal now
        queue = WorkQueue(lambda depth: None, lambda wait: None)
        for key in (A, B, C):
            queue.add(key)
        now += 300
        assert queue.stalled_seconds == 300
        await queue._take()
        assert queue.stalled_seconds == 0, "one was taken just now, though the others wait for long"
        now += 10
        assert queue.stalled_seconds == 10
        await queue._take()
        await queue._take()
        now += 500
        assert queue.stalled_seconds == 0, "nothing waits"
        queue.add(A)
        queue._finish(A, succeeded=True)
        now += 1
        assert queue.stalled_seconds == 1, "counted from when there was something to take"

    asyncio.run(run())
