"""The demo's table: from counters of the exporter to figures for people."""

import pytest

from demo.figures import Counters, figures, table

BEFORE = Counters(tokens=10, steps=10, step_seconds=1.0, intervals=9, interval_seconds=1.0, cast_seconds=0.5)
AFTER = Counters(tokens=70, steps=40, step_seconds=7.0, intervals=37, interval_seconds=8.0, cast_seconds=5.0)


def test_figures_are_means_over_the_steps_between_two_readings():
    row = figures(AFTER - BEFORE)
    assert row.tokens == 60
    assert row.step == pytest.approx(0.2)
    assert row.cast == pytest.approx(0.15)
    assert row.cast_share == pytest.approx(0.75)


def test_tokens_a_second_leave_out_the_pauses_between_requests():
    # Two tokens a step, 0.25 s from one step's end to the next's: 30 steps, of which 28 directly follow another.
    assert figures(AFTER - BEFORE).tokens_per_second == pytest.approx(8.0)


def test_a_stretch_without_decode_steps_has_no_figures():
    with pytest.raises(ValueError, match="no two decode steps"):
        figures(BEFORE - BEFORE)


def test_the_table_has_a_row_for_each_mode():
    lines = table({"WholePool": figures(AFTER - BEFORE), "Never": figures(AFTER - BEFORE)}).splitlines()
    assert lines[0].split("  ")[0] == "kvCast"
    assert lines[1].split() == ["WholePool", "8.0", "200.0", "150.0", "75%", "60"]
    assert lines[2].split()[0] == "Never"
