"""``/v1/decode``: the same readings as JSON for the operator (contract: docs/architecture.md)."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from glm5_mla.download import PROGRESS_FILE

from .ranks import WINDOW_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .ranks import Rank

VERSION = 1


def decode_figures(ranks: Sequence[Rank], deployment: str, run_dir: Path) -> dict[str, Any]:
    """Return the JSON object. What is not known now is None: no value outlives the rank that measured it."""
    rank0 = next((living for number, living in ranks if number == 0), None)
    window = rank0.window if rank0 else None
    return {
        "version": VERSION,
        "time": time.time(),
        "deployment": deployment,
        "backend": None
        if rank0 is None
        else {
            "verified": rank0.info.verified,
            "kvCast": rank0.info.kv_cast,
            "kernel": rank0.info.kernel,
            "version": rank0.info.version,
            "sglang": rank0.info.sglang,
            "flashinfer": rank0.info.flashinfer,
            "torch": rank0.info.torch,
            "gpu": rank0.info.gpu,
        },
        "download": _download(run_dir),
        "runningRequests": rank0.running_requests if rank0 else None,
        "window": {
            "seconds": window.seconds if window else WINDOW_S,
            "steps": window.steps if window else None,
            "tokens": window.tokens if window else None,
            "tokensPerSecond": window.tokens_per_second if window else None,
            "batchSize": window.batch if window else None,
            "kvTokens": window.kv_tokens if window else None,
            "ranks": [_rank_figures(rank) for rank in ranks],
        },
    }


def _download(run_dir: Path) -> Any:
    """Progress of `glm5-mla download`, which removes its file when it ends; None when nothing is being downloaded."""
    try:
        return json.loads((run_dir / PROGRESS_FILE).read_text())
    except (OSError, ValueError):
        return None


def _rank_figures(rank: Rank) -> dict[str, Any]:
    living = rank.living
    window = living.window if living else None
    return {
        "rank": rank.number,
        "alive": living is not None,
        "lastStepTime": living.last_step_end_s if living else None,
        "steps": window.steps if window else None,
        "stepSeconds": window.step_s if window else None,
        "intervalSeconds": window.interval_s if window else None,
        "castSeconds": window.cast_s if window else None,
        "attentionSeconds": window.attention_s if window else None,
    }
