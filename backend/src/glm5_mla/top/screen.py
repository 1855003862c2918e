"""From figures to lines of text: nothing here reads or writes anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .figures import PodFigures, RankFigures

WIDTH = 80
_RED, _BLUE, _GREEN, _GREY, _BOLD, _RESET = (f"\x1b[{code}m" for code in ("31", "34", "32", "90", "1", "0"))
_BARS = " ▁▂▃▄▅▆▇█"
_ASCII_BARS = " .:-=+*#%"


@dataclass(frozen=True)
class Style:
    """What the terminal can show."""

    color: bool = True
    unicode: bool = True

    def paint(self, code: str, text: str) -> str:
        """Return the text in a colour, if there are colours."""
        return f"{code}{text}{_RESET}" if self.color and text else text


def duration(seconds: float | None) -> str:
    """Return a time in the unit that suits it, with three digits."""
    if not seconds:
        return "-" if seconds is None else "0"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(seconds * 1e6)} us"


def number(value: float | None) -> str:
    """Return a number with about three digits, or a dash where it is unknown."""
    return "-" if value is None else _three(value)


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def sparkline(values: Sequence[float], width: int, style: Style) -> str:
    """Return the last ``width`` values as a line of bars, the highest filling its place."""
    bars = _BARS if style.unicode else _ASCII_BARS
    shown = list(values)[-width:]
    top = max(shown, default=0) or 1
    return "".join(bars[round(max(value, 0) / top * (len(bars) - 1))] for value in shown)


def lines(pods: Sequence[PodFigures], history: dict[str, list[float]], style: Style) -> list[str]:
    """Return the screen's lines, each at most WIDTH columns wide."""
    out: list[str] = []
    for pod in pods:
        out += [*_pod(pod, history.get(pod.pod, []), style), ""]
    return out


def _pod(pod: PodFigures, history: Sequence[float], style: Style) -> list[str]:
    name = "/".join(part for part in (pod.namespace, pod.deployment, pod.pod) if part)
    out = [style.paint(_BOLD, name[:WIDTH])]
    if pod.error:
        return [*out, f"  {pod.error}"[:WIDTH]]
    if not pod.backend:
        return [*out, "  the server is not up: no rank 0 writes figures", *_ranks(pod.ranks, style)]
    backend = pod.backend
    about = f"  kvCast {backend['kvCast']}, kernel {backend['kernel']}, SGLang {backend['sglang']}"
    out.append(f"{about}, {backend['gpu'] or 'CPU'}"[:WIDTH])
    rate = f"  {number(pod.tokens_per_second)} tok/s   running {number_or_dash(pod.running)}"
    rate += f"   batch {number(pod.batch)}   KV rows {number(pod.kv_tokens)}"
    out.append(f"{rate:<54}{sparkline(history, WIDTH - 54, style)}"[:WIDTH])
    out += _step(pod, style)
    return [*out, *_ranks(pod.ranks, style)]


def number_or_dash(value: int | None) -> str:
    """Return a count, or a dash where it is unknown."""
    return "-" if value is None else str(value)


def _step(pod: PodFigures, style: Style) -> list[str]:
    step, cast, attention = pod.mean("step"), pod.mean("cast"), pod.mean("attention")
    if step is None or cast is None or attention is None:
        return ["  idle: no decode step lately"]
    rest = max(step - cast - attention, 0.0)
    interval = pod.mean("interval")
    gap = None if interval is None else max(interval - step, 0.0)
    parts = [("cast", cast, _RED), ("attention", attention, _BLUE), ("rest", rest, _GREEN)]
    text = "   ".join(
        f"{style.paint(color, name)} {duration(value)} ({value / step:.0%})" if step else name
        for name, value, color in parts
    )
    whole = step + (gap or 0.0)
    bar, block = "", "█" if style.unicode else "#"
    for _, value, color in parts:
        bar += style.paint(color, block * round(value / whole * (WIDTH - 4)) if whole else "")
    used = sum(round(value / whole * (WIDTH - 4)) if whole else 0 for _, value, _ in parts)
    bar += style.paint(_GREY, ("░" if style.unicode else ".") * max(WIDTH - 4 - used, 0))
    return [f"  step {duration(step)} + host gap {duration(gap)}", f"  {text}", f"  {bar}"]


def _ranks(ranks: Sequence[RankFigures], style: Style) -> list[str]:
    if not ranks:
        return []
    out = [style.paint(_GREY, f"  {'rank':<6}{'':<6}{'step':>12}{'cast':>12}{'attention':>12}{'interval':>12}")]
    for rank in ranks:
        state = "up" if rank.alive else style.paint(_RED, "DOWN")
        times = "".join(f"{duration(value):>12}" for value in (rank.step, rank.cast, rank.attention, rank.interval))
        out.append(f"  {rank.rank:<6}{state}{' ' * (6 - (2 if rank.alive else 4))}{times}")
    return out
