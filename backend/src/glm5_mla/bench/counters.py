"""Hardware counters of the decode kernel, by Nsight Compute: what bounds it at each shape.

    python -m glm5_mla.bench.counters --out counters.json [--details FOLDER]

Runs itself under ncu, once for all shapes. The clocks are left alone; ncu empties the caches before each of its passes.
Percent figures are of the peak that could be sustained; `stalls` are the warps, per issued instruction, that waited for
each reason.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from glm5_mla.kernels import KV_LORA_RANK, ROPE_DIM, ROW

SHAPES = ((1, 8_192), (1, 131_072), (32, 8_192))
HEADS = 8
POOL_ROWS = 495_552
LAUNCHES = 3
"""Of each shape; the figures are the last one's."""
KERNEL = "mla_decode"
SECTIONS = (
    "SpeedOfLight",
    "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis",
    "SchedulerStats",
    "WarpStateStats",
    "LaunchStats",
    "Occupancy",
)
METRICS = {
    "duration_us": "gpu__time_duration.sum",
    "dram_percent": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_percent": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue_slots_percent": "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "warps_active_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "l2_hit_percent": "lts__t_sector_hit_rate.pct",
    "registers_a_thread": "launch__registers_per_thread",
    "shared_memory_a_block": "launch__shared_mem_per_block",
    "blocks": "launch__grid_size",
    "threads_a_block": "launch__block_size",
}
STALL = "smsp__average_warps_issue_stalled_"
STALL_END = "_per_issue_active.ratio"
FOLDERS = "/usr/local/cuda/bin:/opt/nvidia/nsight-compute"


def launch() -> None:
    """Launch the kernel at each shape, in the order of SHAPES: what runs under ncu."""
    import torch

    from glm5_mla import kernels

    device = torch.device("cuda")
    kernel = kernels.make("cuda", device, HEADS)
    pool = (torch.randn((POOL_ROWS, 1, ROW), device=device, dtype=torch.float16) * 0.7).to(torch.float8_e4m3fn)
    for batch, context in SHAPES:
        q_nope = torch.randn((batch, HEADS, KV_LORA_RANK), device=device, dtype=torch.bfloat16)
        q_rope = torch.randn((batch, HEADS, ROPE_DIM), device=device, dtype=torch.bfloat16)
        qo_indptr = torch.arange(batch + 1, dtype=torch.int32, device=device)
        rows = torch.randperm(POOL_ROWS, device=device)[: batch * context].int()
        for _ in range(LAUNCHES):
            kernel(q_nope, q_rope, pool, qo_indptr, qo_indptr * context, rows, sm_scale=1 / math.sqrt(256))
    torch.cuda.synchronize()


def read(page: str) -> list[dict[str, Any]]:
    """Read ncu's page `raw` as CSV (a line of names, one of units, one a profile): a dictionary a profile.

    A metric that this ncu does not have is left out.
    """
    lines = list(csv.reader(io.StringIO(page[page.index('"ID"') :])))
    names, units = lines[0], lines[1]
    found = []
    for line in lines[2:]:
        values = dict(zip(names, line, strict=False))
        unit = dict(zip(names, units, strict=False))
        row: dict[str, Any] = {}
        for name, metric in METRICS.items():
            if values.get(metric):
                value = float(values[metric].replace(",", ""))
                scale = {"ns": 1e-3, "nsecond": 1e-3, "ms": 1e3, "msecond": 1e3, "Kbyte/block": 1e3}.get(
                    unit[metric], 1
                )
                row[name] = round(value * scale, 2)
        stalls = {
            name.removeprefix(STALL).removesuffix(STALL_END): float(value.replace(",", ""))
            for name, value in values.items()
            if name.startswith(STALL) and name.endswith(STALL_END) and value
        }
        row["stalls"] = {name: round(stalls[name], 2) for name in sorted(stalls, key=lambda name: -stalls[name])[:5]}
        found.append(row)
    return found


def find_ncu() -> str | None:
    """Find ncu: on PATH, in the CUDA toolkit, or beside it."""
    installed = [str(path.parent) for path in Path("/opt/nvidia/nsight-compute").glob("*/ncu")]
    return shutil.which("ncu", path=":".join([os.environ.get("PATH", ""), FOLDERS, *installed]))


def main() -> int:
    """Profile, print a line a shape, write the JSON; 1 where there is no ncu or it can't read counters."""
    parser = argparse.ArgumentParser(description="Hardware counters of the decode kernel, by ncu.")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--details", type=Path, help="folder for ncu's own text")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.launch:
        launch()
        return 0
    ncu = find_ncu()
    if ncu is None or args.out is None:
        parser.error("needs ncu (Nsight Compute) on PATH and --out FILE")
    from glm5_mla.bench.kernel import machine, versions

    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "decode.ncu-rep"
        profile = [ncu, "--clock-control", "none", "-f", "-o", str(report), "--kernel-name", f"regex:{KERNEL}"]
        profile += [word for section in SECTIONS for word in ("--section", section)]
        itself = [sys.executable, "-m", "glm5_mla.bench.counters", "--launch"]
        status = subprocess.run([*profile, *itself], stdout=sys.stdout, stderr=subprocess.STDOUT).returncode
        if status or not report.exists():
            print(f"ncu ended with status {status} and left no profile", file=sys.stderr)
            return 1
        pages = {
            page: subprocess.run(
                [ncu, "--import", str(report), "--page", page, *more], check=True, capture_output=True, text=True
            ).stdout
            for page, more in (("raw", ("--csv", "--print-units", "base")), ("details", ()))
        }
    if args.details:
        args.details.mkdir(parents=True, exist_ok=True)
        (args.details / "ncu-details.log").write_text(pages["details"])
    profiles = read(pages["raw"])[LAUNCHES - 1 :: LAUNCHES]  # the last launch of each shape
    rows = [
        {"batch": batch, "context": context, **row} for (batch, context), row in zip(SHAPES, profiles, strict=False)
    ]
    for row in rows:
        print(json.dumps(row), flush=True)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    args.out.write_text(
        json.dumps({"machine": machine(), "versions": versions(), "date": date, "rows": rows}, indent=1) + "\n"
    )
    return 0 if len(rows) == len(SHAPES) else 1


if __name__ == "__main__":
    sys.exit(main())
