"""Decode figures from the pods' exporters: parsed without trust, summed, and rounded for people."""

import datetime
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError

from glm5_operator.api.base import ApiModel

# A move smaller than this is noise: not worth a write.
_SIGNIFICANT = 0.10

# Ranks wait for each other in each layer: one whose step is this much above the median holds the others up.
_SLOW_RANK = 1.5

# With kvCast Never there is no cast pass. More than this share means that something else is in use.
_CAST_SHARE_LIMIT = 0.10


class _Rank(ApiModel):
    rank: int
    alive: bool = True
    step_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    cast_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class _Window(ApiModel):
    steps: int | None = Field(default=None, ge=0)
    tokens_per_second: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    batch_size: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    ranks: list[_Rank] = Field(default_factory=list, max_length=256)


class _Backend(ApiModel):
    verified: bool = False
    kv_cast: str = Field(default="", max_length=64)
    kernel: str = Field(default="", max_length=64)
    version: str = Field(default="", max_length=64)
    sglang: str = Field(default="", max_length=64)
    flashinfer: str | None = Field(default="", max_length=64)
    torch: str = Field(default="", max_length=64)
    gpu: str = Field(default="", max_length=128)


class Download(ApiModel):
    """How far the download of a model has come, in bytes. `total` is None until the hub has told.

    `weights`: those of all files that the server loads; 0 where that is not known.
    """

    done: int = Field(ge=0)
    total: int | None = Field(default=None, ge=0)
    weights: int = Field(default=0, ge=0)


class Reading(ApiModel):
    """One pod's answer to `GET /v1/decode`."""

    version: int
    backend: _Backend | None = None
    running_requests: int | None = Field(default=None, ge=0)
    window: _Window = Field(default_factory=_Window)
    download: Download | None = None

    @property
    def step_seconds(self) -> float | None:
        """Mean GPU time of a step over the ranks, in seconds; None where no step was made."""
        return _mean([rank.step_seconds for rank in self.window.ranks])

    @property
    def cast_seconds(self) -> float | None:
        """Mean time of a step spent casting, in seconds; None where no step was made."""
        return _mean([rank.cast_seconds for rank in self.window.ranks])


def parse_reading(document: Any) -> Reading | None:
    """A pod's answer, or None where it is not what it should be."""
    try:
        reading = Reading.model_validate(document)
    except ValidationError:
        return None
    return reading if reading.version == 1 else None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


@dataclass(frozen=True)
class Figures:
    """Decode figures of an object: tokens a second summed over its pods, times of its slowest pod, in seconds."""

    tokens_per_second: float
    step: float | None
    cast: float | None
    batch_size: float | None


def combine(readings: list[Reading]) -> Figures | None:
    """The object's figures; None where no pod said anything."""
    known = [reading for reading in readings if reading.window.tokens_per_second is not None]
    if not known:
        return None
    stepping = [reading for reading in known if reading.step_seconds is not None]
    slowest = max(stepping, key=lambda reading: reading.step_seconds or 0.0, default=None)
    return Figures(
        tokens_per_second=math.fsum(reading.window.tokens_per_second or 0.0 for reading in known),
        step=slowest.step_seconds if slowest else None,
        cast=slowest.cast_seconds if slowest else None,
        batch_size=_mean([reading.window.batch_size for reading in stepping]),
    )


def render(figures: Figures, now: datetime.datetime) -> dict[str, str]:
    """The figures as `status.decode` holds them."""
    made = {"tokensPerSecond": _number(figures.tokens_per_second)}
    if figures.step is not None:
        made["step"] = _milliseconds(figures.step)
        if figures.cast is not None:
            share = figures.cast / figures.step if figures.step else 0.0
            made["cast"] = f"{_milliseconds(figures.cast)} ({share:.0%})"
    if figures.batch_size is not None:
        made["batchSize"] = _number(figures.batch_size)
    made["time"] = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return made


def next_decode(
    previous: Mapping[str, str] | None, figures: Figures | None, now: datetime.datetime, shortest_seconds: float
) -> dict[str, str] | None:
    """What `status.decode` should say now: the previous text unless the figures moved enough and it is old enough.

    Getting known or unknown is told at once.
    """
    if figures is None:
        return None
    made = render(figures, now)
    if not previous or not previous.get("time"):
        return made
    if (
        now - datetime.datetime.fromisoformat(previous["time"].replace("Z", "+00:00"))
    ).total_seconds() < shortest_seconds:
        return dict(previous)
    keys = ("tokensPerSecond", "step", "cast", "batchSize")
    moved = any(_moved(previous.get(key), made.get(key)) for key in keys)
    return made if moved else dict(previous)


def _moved(before: str | None, after: str | None) -> bool:
    if before is None or after is None:
        return before != after
    old, new = _leading_number(before), _leading_number(after)
    return abs(new - old) > _SIGNIFICANT * max(abs(old), 1e-9)


def _leading_number(text: str) -> float:
    digits = text.split("ms")[0].split("us")[0]
    factor = 1e-3 if text.partition(" ")[0].endswith("us") else 1.0
    try:
        return float(digits) * factor
    except ValueError:
        return 0.0


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def _milliseconds(value: float) -> str:
    milliseconds = value * 1e3
    if milliseconds == 0:
        return "0ms"
    return (
        f"{value * 1e6:.0f}us"
        if milliseconds < 0.1
        else f"{milliseconds:.3g}ms"
        if milliseconds < 100
        else (f"{milliseconds:.0f}ms")
    )


def unhealthy(reading: Reading, kv_cast: str) -> tuple[str, str] | None:
    """Reason and sentence of what is wrong with a pod's decoding; None where nothing is."""
    dead = [rank.rank for rank in reading.window.ranks if not rank.alive]
    if dead:
        return "RankSilent", f"rank {', '.join(map(str, dead))} writes no figures any more: see the pod's log"
    steps = {rank.rank: rank.step_seconds for rank in reading.window.ranks if rank.step_seconds is not None}
    if reading.running_requests and not reading.window.steps:
        return "NoTokens", f"{reading.running_requests} request(s) run and no decode step ended in the last seconds"
    if not steps:
        return None
    median = statistics.median(steps.values())
    slow = {rank: step for rank, step in steps.items() if step > _SLOW_RANK * median}
    if slow:
        rank, step = max(slow.items(), key=lambda item: item[1])
        return "SlowRank", f"rank {rank} takes {_milliseconds(step)} a step, the median rank {_milliseconds(median)}"
    step_seconds, cast_seconds = reading.step_seconds, reading.cast_seconds
    if kv_cast == "Never" and step_seconds and cast_seconds and cast_seconds / step_seconds > _CAST_SHARE_LIMIT:
        return (
            "CastInStep",
            f"casts take {_milliseconds(cast_seconds)} of a {_milliseconds(step_seconds)} step though kvCast is Never",
        )
    return None
