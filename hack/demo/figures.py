"""Decode figures of one pod over a stretch of time, from the differences of the exporter's counters."""

from dataclasses import dataclass

from .prometheus import Prometheus

# field of Counters: the exporter's series
SERIES = {
    "tokens": "glm5_decode_tokens_total",
    "steps": "glm5_decode_step_seconds_count",
    "step_seconds": "glm5_decode_step_seconds_sum",
    "intervals": "glm5_decode_interval_seconds_count",
    "interval_seconds": "glm5_decode_interval_seconds_sum",
    "cast_seconds": "glm5_decode_cast_seconds_sum",
}


@dataclass(frozen=True)
class Counters:
    """What the exporter has counted since its pod started. Seconds are summed over steps."""

    tokens: float
    steps: float
    step_seconds: float
    intervals: float
    interval_seconds: float
    cast_seconds: float

    def __sub__(self, earlier: "Counters") -> "Counters":
        return Counters(*(getattr(self, name) - getattr(earlier, name) for name in SERIES))


@dataclass(frozen=True)
class Figures:
    """A row of the table. Times are means a step, in seconds; `cast_share` is cast time by step time."""

    tokens: int
    tokens_per_second: float
    step: float
    cast: float

    @property
    def cast_share(self) -> float:
        """Share of a step's time that casts take, 0 to 1."""
        return self.cast / self.step


def read(prometheus: Prometheus, *, namespace: str, pod: str) -> Counters:
    """Read a pod's counters as Prometheus has them now, times those of rank 0; what is not there yet counts as zero."""
    names = "|".join(SERIES.values())
    found = prometheus.query(f'{{__name__=~"{names}",namespace="{namespace}",pod="{pod}",rank=~"0|"}}')
    values = {labels["__name__"]: value for labels, value in found}
    return Counters(**{field: values.get(series, 0.0) for field, series in SERIES.items()})


def figures(spent: Counters) -> Figures:
    """Turn a difference of counters into figures.

    Tokens a second are tokens a step by the mean time from one step's end to the next's, so that neither prefill nor
    the pauses between requests count. Raises ValueError when no two steps followed each other.
    """
    if spent.steps < 1 or spent.intervals < 1:
        raise ValueError("no two decode steps followed each other in this stretch of time")
    return Figures(
        tokens=round(spent.tokens),
        tokens_per_second=(spent.tokens / spent.steps) / (spent.interval_seconds / spent.intervals),
        step=spent.step_seconds / spent.steps,
        cast=spent.cast_seconds / spent.steps,
    )


def table(rows: dict[str, Figures]) -> str:
    """Lay out a row for each kvCast mode, for people."""
    lines = [f"{'kvCast':<12}{'tok/s':>8}{'step ms':>10}{'cast ms':>10}{'cast share':>12}{'tokens':>8}"]
    for mode, row in rows.items():
        lines.append(
            f"{mode:<12}{row.tokens_per_second:>8.1f}{row.step * 1e3:>10.1f}{row.cast * 1e3:>10.1f}"
            f"{row.cast_share:>12.0%}{row.tokens:>8}"
        )
    return "\n".join(lines)
