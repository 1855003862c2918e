"""`glm5-mla doctor`: what this machine's card and libraries can do for the backend, and why not what they can't.

Libraries are asked, not assumed: FlashInfer is made to run a tiny FP8 case, each of our kernels says itself whether it
can run. Without a GPU only SGLang's CPU engine serves, with the reference kernel.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from typing import TYPE_CHECKING, Any

from glm5_mla.settings import KvCast

if TYPE_CHECKING:
    import argparse

DISTRIBUTIONS = ("glm5-mla", "sglang", "torch", "flashinfer-python", "triton")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--heads", type=int, default=8, help="query heads a GPU has (GLM-5's 64 at tensor parallel 8: 8)"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the findings; 0 when some mode can be served, 1 when none can, 2 without torch."""
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed here; run this in the server's image.", file=sys.stderr)
        return 2
    findings = examine(args.heads)
    print(json.dumps(findings) if args.json else as_text(findings))
    return 0 if any(reason is None for reason in findings["modes"].values()) else 1


def examine(heads: int) -> dict[str, Any]:
    """Find out: `versions`, `device`, and for `kernels` and `modes` why each can't be had (None: it can)."""
    import torch

    from glm5_mla import kernels

    found: dict[str, Any] = {"versions": {name: _version(name) for name in DISTRIBUTIONS}, "heads": heads}
    if not torch.cuda.is_available():
        reason = "there is no NVIDIA GPU that torch can use here"
        found["device"] = {"name": "cpu"}
        found["kernels"] = {"cuda": reason, "flashinfer": reason, "triton": reason, "reference": None}
        found["modes"] = dict.fromkeys((mode.value for mode in KvCast), None)
        found["remark"] = "Only SGLang's CPU engine can serve here, for trials; its speed says nothing about a GPU."
        return found
    from glm5_mla.sglang.reading import flashinfer_fp8_unavailable

    device = torch.device("cuda", 0)
    major, minor = torch.cuda.get_device_capability(device)
    found["device"] = {
        "name": torch.cuda.get_device_name(device),
        "count": torch.cuda.device_count(),
        "compute_capability": f"{major}.{minor}",
        "memory_gib": round(torch.cuda.get_device_properties(device).total_memory / 2**30),
    }
    found["kernels"] = {name: kernels.unavailable(name, device, heads) for name in ("cuda", "triton")}
    found["kernels"]["flashinfer"] = flashinfer_fp8_unavailable(device, heads)
    found["kernels"]["reference"] = "it can't be captured in a CUDA graph"
    no_flashinfer = None if _version("flashinfer-python") else "FlashInfer is not installed"
    readers = [found["kernels"][name] for name in ("cuda", "flashinfer", "triton")]
    found["modes"] = {
        "Never": None if None in readers else "no kernel here reads an FP8 pool as it is",
        "ActiveRows": no_flashinfer,
        "WholePool": no_flashinfer,
    }
    return found


def as_text(found: dict[str, Any]) -> str:
    """Put the findings in words."""
    device = found["device"]
    lines = [", ".join(f"{name} {version or 'not installed'}" for name, version in found["versions"].items())]
    if "compute_capability" in device:
        lines.append(
            f"{device['count']} x {device['name']}, compute capability {device['compute_capability']}, "
            f"{device['memory_gib']} GiB each; asked for {found['heads']} query heads a GPU"
        )
    else:
        lines.append("no GPU")
    for section, what in (("kernels", "kernel that reads FP8 rows as they are"), ("modes", "kvCast mode")):
        for name, reason in found[section].items():
            lines.append(f"  {what} {name}: " + ("can be used" if reason is None else f"no: {reason}"))
    if "remark" in found:
        lines.append(found["remark"])
    return "\n".join(lines)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
