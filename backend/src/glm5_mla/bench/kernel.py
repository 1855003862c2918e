"""Times one layer's MLA decode: our kernels, the floor that reading the rows sets, and every peer that is installed.

    python -m glm5_mla.bench.kernel --output docs/benchmarks/kernel-h200.json

Random rows of a pool of 495,552, page size 1 unless a peer needs pages; 78 layers with a pool each in one CUDA graph,
so that no cache holds them; the best of six timings. Nothing hides one layer's start behind the layer before. Errors
are the norm of the difference over the norm of a float64 reference, the worst over requests and heads.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.metadata
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glm5_mla import kernels
from glm5_mla.kernels import KV_LORA_RANK, ROPE_DIM, ROW
from glm5_mla.kernels.native import library

HEADS = 8
LAYERS = 78
POOL_ROWS = 495_552
SPARSE_ROWS = 2_048
"""Rows that GLM-5's sparse attention picks for a query."""
SHAPES = (
    *((1, SPARSE_ROWS), (8, SPARSE_ROWS), (32, SPARSE_ROWS)),
    *((1, 1_024), (1, 8_192), (1, 32_768), (1, 131_072), (8, 8_192), (32, 8_192), (64, 4_096)),
)
QUERY_TOKENS = (1, 2, 4)
"""Of a request: one as it decodes, more as drafts are verified."""
VERIFY_SHAPES = ((1, 8_192), (1, 131_072), (8, 8_192), (32, 8_192))
RAGGED = ((2_048,) * 64, (114_944, *(256,) * 63))
"""Lengths of the requests of an even batch, and of one with about as many rows, nearly all of one request."""
SCALE = 1 / math.sqrt(256)
SLOW_GRAPH_US = 20_000
PACKAGES = ("torch", "triton", "sglang", "flashinfer-python", "sgl-flash-mla")

Call = Callable[[int], torch.Tensor]
"""Launches layer i of the 78; returns its output [tokens, heads, 512]."""


@dataclass
class Batch:
    """One shape's input. Every request has `query_tokens`, of which each sees one row more than the one before."""

    lengths: tuple[int, ...]
    query_tokens: int
    q_nope: torch.Tensor
    q_rope: torch.Tensor
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    pools: list[torch.Tensor]

    @property
    def batch(self) -> int:
        """Number of requests."""
        return len(self.lengths)

    @property
    def context(self) -> int:
        """Rows of each request of an even batch."""
        return self.lengths[0]

    @property
    def row_bytes(self) -> int:
        """Bytes of FP8 rows that a layer must read."""
        return len(self.kv_indices) * ROW

    def reference(self) -> torch.Tensor:
        """Layer 0 in float64: [tokens, heads, 512]."""
        return self.attend(self.pools[0])

    def attend(self, pool: torch.Tensor) -> torch.Tensor:
        """Attend over `pool` [rows, 1, 576] in float64: [tokens, heads, 512]."""
        q = torch.cat([self.q_nope, self.q_rope], dim=-1).double()
        bounds = [0, *itertools.accumulate(self.lengths)]
        outs = []
        for token in range(len(q)):
            b, i = divmod(token, self.query_tokens)
            seen = self.kv_indices[bounds[b] : bounds[b + 1] - (self.query_tokens - 1 - i)]
            rows = pool[seen.long()].view(-1, ROW).double()
            outs.append(torch.softmax(q[token] @ rows.T * SCALE, dim=-1) @ rows[:, :KV_LORA_RANK])
        return torch.stack(outs)


def make_batch(batch: int, context: int, pools: list[torch.Tensor], page: int = 1, query_tokens: int = 1) -> Batch:
    """Requests of equal length, as `make_ragged` makes them."""
    return make_ragged((context,) * batch, pools, page, query_tokens)


def make_ragged(lengths: Sequence[int], pools: list[torch.Tensor], page: int = 1, query_tokens: int = 1) -> Batch:
    """Random queries and row lists; with `page` > 1 the rows come in whole pages of consecutive rows."""
    device = pools[0].device
    batch = len(lengths)
    generator = torch.Generator(device).manual_seed(batch * 1_000_003 + lengths[0])
    pages = sum(lengths) // page
    available = POOL_ROWS // page
    if pages <= available:
        chosen = torch.randperm(available, generator=generator, device=device)[:pages]
    else:
        chosen = torch.randint(available, (pages,), generator=generator, device=device)
    rows = (chosen[:, None] * page + torch.arange(page, device=device)).flatten().int()
    q = torch.randn((batch * query_tokens, HEADS, ROW), generator=generator, device=device).bfloat16()
    return Batch(
        tuple(lengths),
        query_tokens,
        q[..., :KV_LORA_RANK].contiguous(),
        q[..., KV_LORA_RANK:].contiguous(),
        torch.arange(batch + 1, dtype=torch.int32, device=device) * query_tokens,
        torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device),
        rows,
        pools,
    )


# ---- What is timed. Each makes a `Call` for a batch or raises what its library raises.


def own(name: str, data: Batch) -> Call:
    """One of our kernels."""
    kernel = _own_kernel(name)
    out = torch.empty_like(data.q_nope)

    def call(layer: int) -> torch.Tensor:
        return kernel(
            *(data.q_nope, data.q_rope, data.pools[layer], data.qo_indptr, data.kv_indptr, data.kv_indices, SCALE),
            max_q_len=data.query_tokens,
            out=out,
        )

    return call


@functools.cache
def _own_kernel(name: str) -> kernels.MlaDecode:
    return kernels.make(name, torch.device("cuda"), HEADS)


def flashinfer(dtype: torch.dtype, data: Batch) -> Call:
    """FlashInfer's MLA kernel over a pool of `dtype`; BF16 pools are made by casting ours, outside the timing."""
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    wrapper = BatchMLAPagedAttentionWrapper(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), backend="fa3")
    lengths = data.kv_indptr[1:] - data.kv_indptr[:-1]
    wrapper.plan(
        data.qo_indptr, data.kv_indptr, data.kv_indices, lengths, HEADS, KV_LORA_RANK, ROPE_DIM, 1, False, SCALE,
        torch.bfloat16, dtype,
    )  # fmt: skip
    pools = data.pools if dtype == torch.float8_e4m3fn else _bf16_pools(data.pools)
    scales = {"ckv_scale": 1.0, "kpe_scale": 1.0} if dtype == torch.float8_e4m3fn else {}

    def call(layer: int) -> torch.Tensor:
        pool = pools[layer]
        out: torch.Tensor = wrapper.run(
            data.q_nope, data.q_rope, pool[..., :KV_LORA_RANK], pool[..., KV_LORA_RANK:], **scales
        )
        return out

    return call


_BF16: list[torch.Tensor] = []


def _bf16_pools(pools: list[torch.Tensor]) -> list[torch.Tensor]:
    """BF16 copies of the pools."""
    return _made_once(_BF16, pools, torch.Tensor.bfloat16, spare_gib=12)


def _made_once(
    made: list[torch.Tensor], pools: list[torch.Tensor], make: Callable[[torch.Tensor], torch.Tensor], spare_gib: int
) -> list[torch.Tensor]:
    """The pools in another format, made once outside the timing; fewer, in turn, when the card can't hold all."""
    if not made:
        room = torch.cuda.mem_get_info()[0] - (spare_gib << 30)
        count = max(1, min(len(pools), room // (2 * pools[0].numel())))
        made.extend(make(pool) for pool in pools[:count])
    return [made[i % len(made)] for i in range(len(pools))]


def sglang_triton(splits: int, data: Batch) -> Call:
    """SGLang's Triton decode kernel with a given number of KV splits (its server's default is 8)."""
    from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd

    q = torch.cat([data.q_nope, data.q_rope], dim=-1)
    out = torch.empty_like(data.q_nope)
    logits = torch.empty((data.batch, HEADS, splits, KV_LORA_RANK), dtype=torch.float32, device="cuda")
    lse = torch.empty((data.batch, HEADS, splits), dtype=torch.float32, device="cuda")
    counts = torch.full((data.batch,), splits, dtype=torch.int32, device="cuda")

    def call(layer: int) -> torch.Tensor:
        pool = data.pools[layer]
        decode_attention_fwd(
            q, pool, pool[..., :KV_LORA_RANK], out, data.kv_indptr, data.kv_indices, logits, lse, counts, splits, SCALE,
            1.0, 1.0, has_mla=True,
        )  # fmt: skip
        return out

    return call


def flash_mla_dense(data: Batch) -> Call:
    """FlashMLA over BF16 pages of 64 rows."""
    from sglang.kernels.ops.attention.flash_mla_interface import flash_mla_with_kvcache, get_mla_metadata

    lengths = torch.full((data.batch,), data.context, dtype=torch.int32, device="cuda")
    table = (data.kv_indices[::64] // 64).view(data.batch, -1).contiguous()
    q = torch.cat([data.q_nope, data.q_rope], dim=-1).unsqueeze(1)
    metadata, splits = get_mla_metadata(lengths, HEADS, 1)
    pools = [pool.view(-1, 64, 1, ROW) for pool in _bf16_pools(data.pools)]

    def call(layer: int) -> torch.Tensor:
        out, _ = flash_mla_with_kvcache(
            q, pools[layer], table, lengths, KV_LORA_RANK, metadata, splits, softmax_scale=SCALE, causal=True
        )
        result: torch.Tensor = out.squeeze(1)
        return result

    return call


def flash_mla_sparse(data: Batch) -> Call:
    """FlashMLA over listed rows of its own FP8 format (656 bytes: 512 values, 4 scales, 64 rotary values in BF16).

    It takes 64 heads or 128, so SGLang pads the queries, and so does this; the padding is not timed.
    """
    from sglang.kernels.ops.attention.flash_mla_interface import flash_mla_with_kvcache, get_mla_metadata

    heads = 64
    q = torch.zeros((data.batch, 1, heads, ROW), dtype=torch.bfloat16, device="cuda")
    q[:, 0, :HEADS] = torch.cat([data.q_nope, data.q_rope], dim=-1)
    lengths = torch.full((data.batch,), data.context, dtype=torch.int32, device="cuda")
    indices = data.kv_indices.view(data.batch, 1, data.context)
    table = torch.empty((data.batch, 0), dtype=torch.int32, device="cuda")
    metadata, splits = get_mla_metadata(
        cache_seqlens=lengths, num_q_tokens_per_head_k=heads, num_heads_k=1, num_heads_q=heads, is_fp8_kvcache=True,
        topk=data.context,
    )  # fmt: skip
    pools = _quantized_pools(data.pools)

    def call(layer: int) -> torch.Tensor:
        out, _ = flash_mla_with_kvcache(
            q, pools[layer], table, lengths, KV_LORA_RANK, metadata, splits, softmax_scale=SCALE, is_fp8_kvcache=True,
            indices=indices, kv_format="V32",
        )  # fmt: skip
        result: torch.Tensor = out[:, 0, :HEADS]
        return result

    return call


_QUANTIZED: list[torch.Tensor] = []


def _quantized_pools(pools: list[torch.Tensor]) -> list[torch.Tensor]:
    """The pools in FlashMLA's sparse format, [pages, 64, 1, 656]."""
    from sglang.kernels.ops.quantization.dsa_quant_k_cache import quantize_k_cache

    def quantized(pool: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = quantize_k_cache(pool.bfloat16().view(-1, 64, 1, ROW))
        return result

    return _made_once(_QUANTIZED, pools, quantized, spare_gib=8)


def flash_mla_sparse_reference(data: Batch) -> torch.Tensor:
    """Layer 0 in float64 over the rows that FlashMLA's format holds: its quantization is no error of its kernel."""
    rows = _quantized_pools(data.pools)[0].view(-1, 656)
    values = rows[:, :KV_LORA_RANK].double().view(-1, 4, 128)
    scales = rows[:, KV_LORA_RANK : KV_LORA_RANK + 16].contiguous().view(torch.float32).double()
    rotary = rows[:, KV_LORA_RANK + 16 :].contiguous().view(torch.bfloat16).double()
    pool = torch.cat([(values * scales[..., None]).view(-1, KV_LORA_RANK), rotary], dim=-1)
    return data.attend(pool.view(-1, 1, ROW))


def gather_then_cast(data: Batch) -> Call:
    """The field patch's cast alone: the rows in use copied out and cast to BF16, without any attention."""

    def call(layer: int) -> torch.Tensor:
        rows = torch.index_select(data.pools[layer].view(torch.uint8), 0, data.kv_indices)
        return rows.view(torch.float8_e4m3fn).bfloat16()

    return call


def whole_pool_cast(data: Batch) -> Call:
    """What SGLang ships does this before every layer's attention."""
    return lambda layer: data.pools[layer].bfloat16()


def read_floor(per_sm: int, data: Batch) -> Call:
    """Read the rows and do nothing with them: what no kernel can beat."""
    out = torch.zeros(1, dtype=torch.int32, device="cuda")

    def call(layer: int) -> torch.Tensor:
        stream = torch.cuda.current_stream().cuda_stream
        rows = data.kv_indices
        library.load().read_rows(
            data.pools[layer].data_ptr(), rows.data_ptr(), rows.numel(), out.data_ptr(), per_sm, stream
        )
        return out

    return call


@dataclass
class Entry:
    """A line of the table: its name, how to make it for a batch at each setting tried, and what it stands for."""

    name: str
    makers: dict[str, Callable[[Batch], Call]]
    attends: bool = True
    page: int = 1
    context: int | None = None
    """The only context that it can serve."""
    reference: Callable[[Batch], torch.Tensor] | None = None
    """What it is compared with, where it does not read our rows."""


def entries() -> list[Entry]:
    """Everything that is timed, ours first."""
    part = functools.partial
    return [
        Entry("read floor", {f"{n} blocks an SM": part(read_floor, n) for n in (1, 2, 4, 6)}, attends=False),
        Entry("glm5-mla cuda", {"": part(own, "cuda")}),
        Entry("glm5-mla triton", {"": part(own, "triton")}),
        Entry("FlashInfer, FP8 rows", {"": part(flashinfer, torch.float8_e4m3fn)}),
        Entry("FlashInfer, BF16 rows", {"": part(flashinfer, torch.bfloat16)}),
        Entry("SGLang Triton, server's splits", {"8 splits": part(sglang_triton, 8)}),
        Entry("SGLang Triton, best splits", {f"{n} splits": part(sglang_triton, n) for n in (4, 8, 16, 32, 64, 128)}),
        Entry("FlashMLA, BF16 pages of 64", {"": flash_mla_dense}, page=64),
        Entry(
            "FlashMLA, sparse FP8",
            {"": flash_mla_sparse},
            context=SPARSE_ROWS,
            reference=flash_mla_sparse_reference,
        ),
        Entry("gather then cast (no attention)", {"": gather_then_cast}, attends=False),
        Entry("whole-pool cast (no attention)", {"": whole_pool_cast}, attends=False),
    ]


def microseconds(call: Call) -> float:
    """Time of one layer: a CUDA graph of all layers, the best of six timings of five replays (one, if it is slow)."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call(0)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for layer in range(LAYERS):
                call(layer)
        graph.replay()
        best, replays = math.inf, 1
        for _ in range(6):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(stream)
            for _ in range(replays):
                graph.replay()
            end.record(stream)
            end.synchronize()
            best = min(best, start.elapsed_time(end) / replays / LAYERS * 1e3)
            replays = 5 if best * LAYERS < SLOW_GRAPH_US else 1
    return best


def worst_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference over norm of `wanted`, the worst over requests and heads."""
    return float(((got.double() - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max())


def rows(shapes: tuple[tuple[int, int], ...], pools: list[torch.Tensor]) -> Iterator[dict[str, Any]]:
    """Yield a row per entry and shape; an entry that can't run yields one row that says why."""
    whole_pool_done = False
    for batch, context in shapes:
        data = {page: make_batch(batch, context, pools, page) for page in (1, 64)}
        wanted = {page: each.reference() for page, each in data.items()}
        for entry in entries():
            if (entry.name.startswith("whole-pool") and whole_pool_done) or entry.context not in (None, context):
                continue
            each = data[entry.page]
            row: dict[str, Any] = {"kernel": entry.name, "batch": batch, "context": context}
            try:
                calls = {setting: make(each) for setting, make in entry.makers.items()}
                first = next(iter(calls.values()))
                truth = entry.reference(each) if entry.reference else wanted[entry.page]
                error = worst_error(first(0), truth) if entry.attends else None
                timed = {setting: microseconds(call) for setting, call in calls.items()}
            except Exception as problem:  # a peer may be absent or refuse this card: say so, go on
                torch.cuda.synchronize()
                yield row | {"unavailable": f"{type(problem).__name__}: {str(problem).strip()[:200]}"}
                continue
            setting = min(timed, key=lambda name: timed[name])
            row |= {
                "us": round(timed[setting], 2),
                "gb_per_s": round(each.row_bytes / timed[setting] / 1e3),
                "relative_error": error,
            }
            if setting:
                row["setting"] = setting
            if entry.name.startswith("whole-pool"):
                whole_pool_done = True
                row |= {"batch": None, "context": None, "gb_per_s": round(3 * pools[0].numel() / timed[setting] / 1e3)}
            yield row


def verify_rows(pools: list[torch.Tensor]) -> Iterator[dict[str, Any]]:
    """Yield the times of our kernel with several query tokens a request, beside those with one."""
    for batch, context in VERIFY_SHAPES:
        times: dict[int, float] = {}
        for query_tokens in QUERY_TOKENS:
            data = make_batch(batch, context, pools, query_tokens=query_tokens)
            call = own("cuda", data)
            times[query_tokens] = microseconds(call)
            yield {
                "batch": batch,
                "context": context,
                "query_tokens": query_tokens,
                "us": round(times[query_tokens], 2),
                "times_one_token": round(times[query_tokens] / times[1], 2),
                "relative_error": worst_error(call(0), data.reference()),
            }


def ragged_rows(pools: list[torch.Tensor]) -> Iterator[dict[str, Any]]:
    """Yield the times of our kernel for an even batch and for an uneven one, both of 64 requests."""
    for lengths in RAGGED:
        data = make_ragged(lengths, pools)
        call = own("cuda", data)
        yield {
            "requests": len(lengths),
            "longest": max(lengths),
            "shortest": min(lengths),
            "us": round(microseconds(call), 2),
            "relative_error": worst_error(call(0), data.reference()),
        }


def machine() -> dict[str, Any]:
    """Tell what the figures were measured on."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "sms": properties.multi_processor_count,
        "memory_gib": properties.total_memory >> 30,
    }


def versions() -> dict[str, str]:
    """Versions of what takes part, as installed."""
    found = {"cuda": str(torch.version.cuda)}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def main() -> None:
    """Measure, print a line a row, write the JSON."""
    parser = argparse.ArgumentParser(description="Time one layer's MLA decode on this machine's GPU.")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--seconds", type=float, default=600, help="start no further measurement after this long")
    parser.add_argument("--shapes", default=",".join(f"{b}x{c}" for b, c in SHAPES), help="batch x context, by comma")
    args = parser.parse_args()
    deadline = time.monotonic() + args.seconds
    shapes = tuple((int(b), int(c)) for b, c in (shape.split("x") for shape in args.shapes.split(",")))
    torch.manual_seed(0)
    values = torch.randn((POOL_ROWS, 1, ROW), device="cuda", dtype=torch.float16)
    pools = [(values.roll(i, 0) * 0.7).to(torch.float8_e4m3fn) for i in range(LAYERS)]
    result: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "what": "microseconds a layer, 8 heads, FP8 rows of 576 bytes, random rows, 78 pools in one CUDA graph",
    }
    sections = {"rows": rows(shapes, pools), "verify": verify_rows(pools), "ragged": ragged_rows(pools)}
    for section, row in ((name, row) for name, found in sections.items() for row in found):
        result.setdefault(section, []).append(row)
        print(section, json.dumps(row), flush=True)
        args.output.write_text(json.dumps(result, indent=1) + "\n")
        if time.monotonic() > deadline:
            break


if __name__ == "__main__":
    main()
