"""What `glm5-mla top` shows, in 80 columns."""

import re

import pytest

from glm5_mla.top.figures import PodFigures, RankFigures, from_exporter
from glm5_mla.top.screen import Style, duration, lines, sparkline

PLAIN = Style(color=False, unicode=False)
BACKEND = {
    "kvCast": "WholePool",
    "kernel": "reference",
    "sglang": "0.5.23",
    "gpu": "NVIDIA RTX PRO 6000 Blackwell Server",
}
RANKS = tuple(RankFigures(rank, True, step=0.0936, interval=0.0952, cast=0.0646, attention=0.0081) for rank in range(8))
POD = PodFigures("inference", "glm5", "glm5-6d5f7b9c4-x2x7p", BACKEND, 10.5, 1.0, 8192.0, 1, RANKS)


@pytest.mark.parametrize("style", [PLAIN, Style(color=True, unicode=True)])
@pytest.mark.parametrize("pods", [1, 3])
def test_no_line_is_wider_than_80_columns(style, pods):
    shown = lines([POD] * pods, {POD.pod: [float(i % 17) for i in range(300)]}, style)
    widths = [len(re.sub(r"\x1b\[\d+m", "", line)) for line in shown]
    assert max(widths) <= 80


def test_eight_ranks_fit_into_a_terminal_of_24_lines():
    assert len(lines([POD], {}, PLAIN)) <= 22


def test_the_step_s_time_is_told_by_cause():
    text = "\n".join(lines([POD], {}, PLAIN))
    assert "step 93.6 ms + host gap 1.60 ms" in text
    assert "cast 64.6 ms (69%)   attention 8.10 ms (9%)   rest 20.9 ms (22%)" in text
    assert "10.5 tok/s" in text
    assert "WholePool" in text


def test_the_bar_s_parts_are_as_long_as_their_times():
    bar = next(line for line in lines([POD], {}, Style(True, True)) if "█" in line)
    parts = [len(part) for part in re.findall(r"\x1b\[\d+m([█░]+)", bar)]
    assert sum(parts) == 76
    assert parts[0] / 76 == pytest.approx(0.0646 / 0.0952, abs=0.01)


def test_a_dead_rank_stands_out_and_hides_no_other():
    pod = PodFigures("n", "d", "p", BACKEND, 1.0, 1.0, 1.0, 1, (RANKS[0], RankFigures(1, False)))
    text = "\n".join(lines([pod], {}, PLAIN))
    assert re.search(r"^  1\s+DOWN\s+-\s+-\s+-\s+-$", text, flags=re.MULTILINE)
    assert re.search(r"^  0\s+up\s+93\.6 ms", text, flags=re.MULTILINE)


def test_an_idle_server_is_called_idle_and_not_a_step_of_zero():
    pod = PodFigures("n", "d", "p", BACKEND, 0.0, None, None, 0, (RankFigures(0, True),))
    text = "\n".join(lines([pod], {}, PLAIN))
    assert "idle" in text
    assert "step 0" not in text


def test_a_pod_that_cannot_be_read_says_why_in_its_place():
    shown = lines([PodFigures("n", "d", "p", {}, error="kubectl: connection refused"), POD], {}, PLAIN)
    assert shown[:2] == ["n/d/p", "  kubectl: connection refused"]
    assert any("93.6 ms" in line for line in shown)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0"), (7.25e-6, "7.25 us"), (0.000999, "999 us"), (0.0123, "12.3 ms"), (1.5, "1.50 s")],
)
def test_times_have_three_digits_and_a_unit_that_suits(seconds, text):
    assert duration(seconds) == text


def test_a_sparkline_shows_the_last_values_against_their_highest():
    assert sparkline([0, 50, 100], 8, PLAIN) == " =%"
    assert sparkline(range(100), 3, Style()) == "███"
    assert sparkline([], 5, PLAIN) == ""
    assert sparkline([0, 0], 5, PLAIN) == "  "


def test_an_exporter_of_another_version_is_refused():
    with pytest.raises(ValueError, match="version 2"):
        from_exporter({"version": 2}, "n", "p")
    with pytest.raises(ValueError, match="lacks"):
        from_exporter({"version": 1}, "n", "p")
