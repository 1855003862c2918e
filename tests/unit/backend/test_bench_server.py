"""What benchmarks of servers make of what they saw."""

import argparse
import itertools
from types import SimpleNamespace

import pytest

from glm5_mla.bench import counters, profile, server
from glm5_mla.bench.profile import Kernel
from glm5_mla.bench.served import Reply


def trace(gap_us, layers=4, watched=1, cast_us=0.0):
    """Two steps: in each layer a matrix product of 5 us and an attention of 10; stamps of 1 us around one layer's.

    With `cast_us` a cast as long stands in front of each attention, between pauses of 0.4 us.
    """
    kernels, now = [], 0.0

    def add(name, duration, pause):
        nonlocal now
        now += pause
        kernels.append(Kernel(now, duration, name, "[1]"))
        now += duration

    for _ in range(2):
        add("stamp_start", 1, 20)
        for layer in range(layers):
            add("matmul", 5, 0.5)
            if layer == watched:
                add("stamp_mark", 1, 0.5)
                add("stamp_idle", 1, 0.5)
            if cast_us:
                add("cast_rows", cast_us, 0.4)
                if layer == watched:
                    add("stamp_cast", 1, 0.4)
            add("mla_decode", 10, 2 * gap_us if layer == watched else gap_us)
            if layer == watched:
                add("stamp_attention", 1, 0.3)
        add("stamp_end", 1, 0.5)
    return kernels


def test_a_trace_gives_step_and_attention_of_all_layers_by_what_stands_between_the_stamps_of_one():
    figures = profile.figures(trace(gap_us=0.8))
    assert figures["steps"] == 2
    assert figures["attention"] == pytest.approx(0.040)
    assert figures["cast"] == 0
    assert figures["step"] == pytest.approx(0.0728)


def test_the_pauses_around_attention_are_taken_from_layers_without_stamps():
    figures = profile.figures(trace(gap_us=0.8))
    assert figures["attention_with_pauses"] == pytest.approx(0.040 + 4 * (0.0008 + 0.0005))
    assert "cast_with_pauses" not in figures
    spans = profile.spans(trace(gap_us=0.8), "attention")
    assert spans["watched"] == {"before": 1.6, "kernels": 10.0, "after": 0.3}
    assert spans["other"] == {"before": 0.8, "kernels": 10.0, "after": 0.5}


def test_a_cast_has_its_pauses_as_attention_has():
    figures = profile.figures(trace(gap_us=0.4, cast_us=6.0))
    assert figures["cast"] == pytest.approx(0.024)
    assert figures["cast_with_pauses"] == pytest.approx(0.024 + 4 * 0.0008)
    assert figures["attention"] == pytest.approx(0.040)


class Timed:
    """Answers like a server whose step takes so many seconds, with what drifts from request to request."""

    def __init__(self, name, step_s, drift):
        self.way = SimpleNamespace(name=name)
        self._step_s, self._drift = step_s, drift

    def generate(self, ids, tokens):
        del ids
        return Reply((self._step_s + next(self._drift)) * tokens, tokens, 0, [], [])


def test_what_timing_costs_is_told_beside_how_much_equal_servers_differ():
    drift = itertools.repeat(0.0)
    timed = [Timed("timed-1", 1.004, drift), Timed("timed-2", 1.008, drift)]
    untimed = [Timed("untimed-1", 1.000, drift), Timed("untimed-2", 1.002, drift)]
    cost = server.timing_cost(timed, untimed, 8000, 8)
    assert cost["cost_percent"] == pytest.approx(0.5, abs=0.01)
    assert cost["standard_error_percent"] == pytest.approx(0, abs=0.01)
    assert cost["equal_servers_differ_percent"] == {"timed": 0.4, "untimed": 0.2}


def test_a_drift_over_the_rounds_is_not_taken_for_a_cost():
    drift = (number * 1e-5 for number in itertools.count())
    timed, untimed = ([Timed(f"{name}-{i}", 1.0, drift) for i in (1, 2)] for name in ("timed", "untimed"))
    assert abs(server.timing_cost(timed, untimed, 8000, 8)["cost_percent"]) < 0.01


def test_skew_is_the_slowest_rank_over_the_fastest():
    assert server.skew([{"step_ms": 5.0}, {"step_ms": 5.1}, {"step_ms": 5.05}], "step_ms") == 2.0


def test_cases_are_read_and_others_refused_with_an_example():
    assert server.shapes("1x8000,32x8000") == ((1, 8000), (32, 8000))
    with pytest.raises(argparse.ArgumentTypeError, match="'8000' is not BATCHxCONTEXT"):
        server.shapes("8000")


def test_an_unknown_way_to_serve_is_refused_by_name(tmp_path, capsys):
    with pytest.raises(SystemExit):
        server.main(["--out", str(tmp_path / "out.json"), "--wave", "never-cuda,nvr"])
    assert "there is no way to serve named nvr" in capsys.readouterr().err


def test_counters_are_read_from_ncus_page_by_name_in_microseconds_and_percent():
    stalled = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
    names = ["ID", "gpu__time_duration.sum", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"]
    names += [stalled.format("long_scoreboard"), stalled.format("barrier")]
    lines = [
        names,
        ["", "ns", "%", "inst", "inst"],
        ["0", "9,216", "12.5", "1.25", "3.5"],
        ["1", "50816", "58.1", "2", "0.5"],
    ]
    page = "==PROF== Report\n" + "\n".join(",".join(f'"{word}"' for word in line) for line in lines)
    assert counters.read(page) == [
        {"duration_us": 9.22, "dram_percent": 12.5, "stalls": {"barrier": 3.5, "long_scoreboard": 1.25}},
        {"duration_us": 50.82, "dram_percent": 58.1, "stalls": {"long_scoreboard": 2.0, "barrier": 0.5}},
    ]
