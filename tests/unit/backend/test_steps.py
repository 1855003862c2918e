"""How decode steps and tokens are counted, with a clock whose readings the test decides."""

from dataclasses import dataclass, field

import pytest

from glm5_mla.timing.clock import Reading
from glm5_mla.timing.steps import StepTimer


@dataclass
class ScriptedClock:
    executions: int = 0
    came_in: list[Reading] = field(default_factory=list)

    def readings(self):
        came_in, self.came_in = self.came_in, []
        return iter(came_in)


@dataclass
class Written:
    steps: list = field(default_factory=list)
    tokens: int = 0
    running: int = 0

    def record(self, step):
        self.steps.append(step)

    def add_tokens(self, count):
        self.tokens += count

    def set_running(self, requests):
        self.running = requests


@dataclass
class Request:
    output_ids: list
    finished_len: int | None = None
    over: bool = False

    def finished(self):
        return self.over


@dataclass
class Rank:
    clock: ScriptedClock = field(default_factory=ScriptedClock)
    written: Written = field(default_factory=Written)

    def __post_init__(self):
        self.timer = StepTimer(self.clock, self.written)

    def step(self, start, end, cast=0, attention=0, **known):
        """A decode forward from `start` to `end`, launched and finished."""
        self.clock.came_in.append(Reading(self.clock.executions, start, end, cast, attention))
        self.clock.executions += 1
        self.timer.launched(**{"batch": 1, "kv_tokens": 100, "graph": True, "cast_bytes": 0, **known})

    def result(self, *requests, before, decoding=True):
        self.timer.processed(requests, before, decoding)


@pytest.fixture
def rank():
    return Rank()


def test_a_step_is_written_with_what_the_clock_and_the_host_know(rank):
    rank.step(1000, 1500, cast=200, attention=100, batch=3, kv_tokens=700, graph=False, cast_bytes=42)
    rank.result(before=[])
    (step,) = rank.written.steps
    assert (step.step_ns, step.cast_ns, step.attention_ns, step.cast_bytes) == (500, 200, 100, 42)
    assert (step.batch, step.kv_tokens, step.graph) == (3, 700, False)


def test_an_interval_goes_from_one_steps_end_to_the_next_ones(rank):
    rank.step(1000, 1500)
    rank.step(1600, 2100)
    rank.result(before=[])
    assert [step.interval_ns for step in rank.written.steps] == [0, 600]


def test_no_interval_is_known_after_idle_time(rank):
    rank.step(1000, 1500)
    rank.timer.idle()
    rank.step(9000, 9500)
    rank.result(before=[])
    assert [step.interval_ns for step in rank.written.steps] == [0, 0]


def test_no_interval_is_known_after_a_prefill(rank):
    rank.step(1000, 1500)
    rank.timer.interrupted()
    rank.step(9000, 9500)
    rank.step(9600, 9900)
    rank.result(before=[])
    assert [step.interval_ns for step in rank.written.steps] == [0, 0, 400]


def test_warm_up_runs_of_the_model_are_no_steps(rank):
    rank.clock.came_in.append(Reading(0, 10, 20, 0, 0))
    rank.clock.executions = 1
    rank.step(1000, 1500)
    rank.result(before=[])
    assert [step.step_ns for step in rank.written.steps] == [500]


def test_a_step_whose_reading_was_lost_is_left_out_and_the_next_one_has_no_interval(rank):
    rank.step(1000, 1500)
    rank.step(1600, 2100, kv_tokens=1)
    rank.step(2200, 2800, kv_tokens=2)
    del rank.clock.came_in[1]
    rank.result(before=[])
    assert [(step.kv_tokens, step.interval_ns) for step in rank.written.steps] == [(100, 0), (2, 0)]


def test_a_clock_that_was_set_back_gives_no_negative_times(rank):
    rank.step(5000, 5500)
    rank.step(2000, 1900)
    rank.result(before=[])
    assert [(step.step_ns, step.interval_ns) for step in rank.written.steps] == [(500, 0), (0, 0)]


def test_a_step_still_running_on_the_device_is_written_when_it_comes_in(rank):
    rank.step(1000, 1500)
    late = rank.clock.came_in.pop()
    rank.result(before=[])
    assert rank.written.steps == []
    rank.clock.came_in.append(late)
    rank.timer.idle()
    assert len(rank.written.steps) == 1


def test_a_requests_first_token_is_not_counted_and_every_later_one_is(rank):
    rank.result(Request([7]), before=[0], decoding=False)
    assert rank.written.tokens == 0
    rank.result(Request([7, 8]), before=[1])
    assert rank.written.tokens == 1


def test_tokens_of_a_verified_draft_count_each_up_to_the_stop(rank):
    rank.result(Request([1, 2, 3, 4, 5], finished_len=3, over=True), before=[1])
    assert rank.written.tokens == 2


def test_a_step_past_a_requests_end_gives_no_token(rank):
    rank.result(Request([1, 2, 3], finished_len=3, over=True), before=[3])
    assert rank.written.tokens == 0


def test_the_token_of_a_retracted_requests_new_prefill_counts(rank):
    rank.result(Request([1, 2, 3, 4]), before=[3], decoding=False)
    assert rank.written.tokens == 1


def test_running_requests_are_the_unfinished_ones_of_the_last_decode_batch(rank):
    rank.result(Request([1, 2]), Request([1, 2], over=True), Request([1, 2]), before=[1, 1, 1])
    assert rank.written.running == 2
    rank.result(Request([1]), before=[0], decoding=False)
    assert rank.written.running == 2
    rank.timer.idle()
    assert rank.written.running == 0
