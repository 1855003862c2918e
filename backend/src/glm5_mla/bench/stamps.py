"""What the stamps of the step timing add to a forward on the GPU, told within one process.

Two CUDA graphs over the same buffers, one with the stamps of a decode forward and one without, are replayed in turn: no
server, client or other place in memory comes into it.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LAYERS, HEADS, CONTEXT, HIDDEN = 78, 8, 8_192, 2_048
ROUNDS, REPLAYS = 40, 10


def cost() -> Iterator[dict[str, Any]]:
    """Yield the microseconds of both graphs, the median of their differences, and its standard error."""
    import torch

    from glm5_mla import kernels
    from glm5_mla.kernels import KV_LORA_RANK, ROPE_DIM, ROW
    from glm5_mla.timing.device_clock import WATCHED_LAYERS, DeviceClock

    device = torch.device("cuda")
    pool = torch.randn((CONTEXT, 1, ROW), device=device).to(torch.float8_e4m3fn)
    q_nope = torch.randn((1, HEADS, KV_LORA_RANK), device=device, dtype=torch.bfloat16)
    q_rope = torch.randn((1, HEADS, ROPE_DIM), device=device, dtype=torch.bfloat16)
    qo_indptr = torch.tensor([0, 1], dtype=torch.int32, device=device)
    kv_indptr = qo_indptr * CONTEXT
    rows = torch.randperm(CONTEXT, device=device).int()
    weight = torch.randn((HIDDEN, HIDDEN), device=device, dtype=torch.bfloat16)
    hidden = torch.randn((1, HIDDEN), device=device, dtype=torch.bfloat16)
    decode = kernels.make("cuda", device, HEADS)
    clock = DeviceClock(range(LAYERS))

    def layer(marked: bool) -> None:
        hidden.matmul(weight)
        if marked:
            clock.mark_begin()
        decode(q_nope, q_rope, pool, qo_indptr, kv_indptr, rows, sm_scale=ROW**-0.5)
        if marked:
            clock.mark_attention()
        for _ in range(3):  # a layer's other kernels: about as much time as the servers' steps have
            hidden.matmul(weight)

    def forward(stamped: bool) -> None:
        if stamped:
            clock.start()
        for number in range(LAYERS):
            layer(stamped and clock.watches(number))
        if stamped:
            clock.end()

    graphs = {name: _capture(lambda name=name: forward(name == "stamped")) for name in ("plain", "stamped")}  # type: ignore[misc]
    spans: dict[str, list[float]] = {name: [] for name in graphs}
    for number in range(ROUNDS):
        for name in sorted(graphs, reverse=bool(number % 2)):
            spans[name].append(_microseconds(graphs[name]))
    differences = [b - a for a, b in zip(spans["plain"], spans["stamped"], strict=True)]
    yield {
        "plain_us": round(statistics.median(spans["plain"]), 2),
        "stamped_us": round(statistics.median(spans["stamped"]), 2),
        "added_us": round(statistics.median(differences), 2),
        "standard_error_us": round(statistics.stdev(differences) / ROUNDS**0.5, 2),
        "watched_layers": WATCHED_LAYERS,
    }


def _capture(body: Callable[[], None]) -> Any:
    import torch

    body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def _microseconds(graph: Any) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    elapsed: float = begin.elapsed_time(end)
    return elapsed / REPLAYS * 1e3
