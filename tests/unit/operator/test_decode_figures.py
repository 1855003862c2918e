"""Decode figures: never trusted, rounded for people, written only when they moved."""

import datetime

import pytest

from glm5_operator.reconcile.decode import Figures, combine, next_decode, parse_reading, render

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


def reading(tokens, step=0.010, cast=0.004):
    ranks = [{"rank": rank, "alive": True, "stepSeconds": step, "castSeconds": cast} for rank in range(2)]
    return parse_reading(
        {"version": 1, "window": {"steps": 5, "tokensPerSecond": tokens, "batchSize": 2.0, "ranks": ranks}}
    )


def after(seconds):
    return NOW + datetime.timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"version": 2},
        {"version": 1, "window": {"tokensPerSecond": -1}},
        {"version": 1, "window": {"tokensPerSecond": float("nan")}},
        {"version": 1, "window": {"ranks": [{"rank": 0}] * 1000}},
        {"version": 1, "backend": {"kernel": "x" * 10_000}},
    ],
)
def test_an_answer_that_is_not_what_it_should_be_is_unknown(document):
    assert parse_reading(document) is None


def test_tokens_are_summed_over_pods_and_times_are_the_slowest_pods():
    figures = combine([reading(100.0, step=0.010), reading(50.0, step=0.020, cast=0.001)])
    assert figures == Figures(tokens_per_second=150.0, step=0.020, cast=0.001, batch_size=2.0)


def test_a_cast_is_shown_with_its_share_of_the_step():
    assert render(Figures(10.7, 0.0935, 0.0646, 1.0), NOW)["cast"] == "64.6ms (69%)"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0ms"), (0.000021, "21us"), (0.0021, "2.1ms"), (0.0646, "64.6ms"), (0.5783, "578ms")]
)
def test_times_are_written_with_three_digits(seconds, text):
    assert render(Figures(1.0, seconds, None, None), NOW)["step"] == text


def test_small_moves_are_not_written():
    before = render(Figures(100.0, 0.010, 0.0, 1.0), NOW)
    assert next_decode(before, Figures(109.0, 0.0105, 0.0, 1.0), after(60), 30) == before


def test_a_move_of_more_than_a_tenth_is_written_once_the_last_is_old_enough():
    before = render(Figures(100.0, 0.010, 0.0, 1.0), NOW)
    moved = Figures(120.0, 0.010, 0.0, 1.0)
    assert next_decode(before, moved, after(29), 30) == before
    assert next_decode(before, moved, after(30), 30)["tokensPerSecond"] == "120"


def test_getting_known_and_unknown_is_told_at_once():
    before = render(Figures(100.0, 0.010, 0.0, 1.0), NOW)
    assert next_decode(before, None, after(1), 30) is None
    assert next_decode(None, Figures(100.0, 0.010, 0.0, 1.0), NOW, 30) == before


def test_an_idle_pod_shows_zero_and_no_step():
    idle = parse_reading({"version": 1, "window": {"steps": 0, "tokensPerSecond": 0.0, "ranks": []}})
    assert render(combine([idle]), NOW) == {"tokensPerSecond": "0", "time": "2026-01-02T03:04:05Z"}


def test_an_exporter_that_knows_nothing_yet_is_no_invalid_answer():
    window = {"seconds": 10.0, "steps": None, "tokens": None, "tokensPerSecond": None, "batchSize": None, "ranks": []}
    reading = parse_reading({"version": 1, "backend": None, "runningRequests": None, "window": window})
    assert reading is not None
    assert combine([reading]) is None
