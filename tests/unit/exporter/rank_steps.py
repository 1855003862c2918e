"""A clock that moves when told to, and decode steps of a given cost."""

from glm5_mla.timing.rankfile import BackendInfo, StepRecord

MS = 1_000_000
S = 1_000_000_000
INFO = BackendInfo("Never", "reference", "0.1.0", "0.5.23", "", "2.14.1", "", True)


class Clock:
    """A monotonic clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 1_000 * S

    def __call__(self) -> int:
        return self.now


def step(
    step_ms: float = 8, cast_ms: float = 5, interval_ms: float = 10, batch: int = 2, graph: bool = True
) -> StepRecord:
    return StepRecord(
        end_ns=1_790_000_000 * S,
        step_ns=int(step_ms * MS),
        interval_ns=int(interval_ms * MS),
        cast_ns=int(cast_ms * MS),
        attention_ns=2 * MS,
        cast_bytes=1152,
        batch=batch,
        kv_tokens=100 * batch,
        graph=graph,
    )
