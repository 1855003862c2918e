"""What one look at a pod gives, whichever way it was got."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class RankFigures:
    """Means over a rank's last steps, in seconds; None where there was no step or the rank is not alive."""

    rank: int
    alive: bool
    step: float | None = None
    interval: float | None = None
    cast: float | None = None
    attention: float | None = None


@dataclass(frozen=True)
class PodFigures:
    """One pod's decode loop over the last seconds; None is unknown."""

    namespace: str
    deployment: str
    pod: str
    backend: Mapping[str, str]
    """``kvCast``, ``kernel``, ``sglang``, ``gpu``; empty while rank 0 is not alive."""
    tokens_per_second: float | None = None
    batch: float | None = None
    kv_tokens: float | None = None
    running: int | None = None
    ranks: tuple[RankFigures, ...] = ()
    error: str = ""
    """Why this pod could not be read."""

    def mean(self, name: str) -> float | None:
        """Return the mean of ``step``, ``interval``, ``cast`` or ``attention`` over the ranks that have it."""
        return _mean(getattr(rank, name) for rank in self.ranks)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def from_exporter(answer: Mapping[str, Any], namespace: str, pod: str) -> PodFigures:
    """Read an exporter's ``/v1/decode``. Raises ValueError if it is not what the contract says."""
    if answer.get("version") != 1:
        raise ValueError(f"the exporter speaks version {answer.get('version')!r} of /v1/decode, this program version 1")
    try:
        window, backend = answer["window"], answer["backend"] or {}
        return PodFigures(
            namespace=namespace,
            deployment=answer["deployment"],
            pod=pod,
            backend={name: str(backend.get(name, "")) for name in ("kvCast", "kernel", "sglang", "gpu") if backend},
            tokens_per_second=window["tokensPerSecond"],
            batch=window["batchSize"],
            kv_tokens=window["kvTokens"],
            running=answer["runningRequests"],
            ranks=tuple(
                RankFigures(
                    rank=rank["rank"],
                    alive=rank["alive"],
                    step=rank["stepSeconds"],
                    interval=rank["intervalSeconds"],
                    cast=rank["castSeconds"],
                    attention=rank["attentionSeconds"],
                )
                for rank in window["ranks"]
            ),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"/v1/decode lacks or misshapes {error}") from error
