"""`glm5-mla audit`: fails when SGLang isn't what the plugin was written for, or would still cast a whole pool.

Runs on source alone: no GPU, no torch. It is a step of the server image's build.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from glm5_mla.audit.fingerprints import fingerprints, known
from glm5_mla.audit.scan import Kind, Site, scan

if TYPE_CHECKING:
    import argparse

_FLASHINFER = "srt/layers/attention/flashinfer_mla_backend.py"
_DSA = "srt/layers/attention/dsa_backend.py"
_POOLS = "srt/mem_cache/memory_pool.py"

# Whole-pool casts that the plugin takes out of the way.
REPLACED = {
    (_FLASHINFER, "FlashInferMLAAttnBackend.forward_decode"): "replaced by CudaMlaBackend.forward_decode",
    (_FLASHINFER, "FlashInferMLAAttnBackend.forward_extend"): (
        "CudaMlaBackend.forward_extend calls it only where it reads no pool row"
    ),
}
# Whole-pool casts in the configured backends' modules that can't be reached as we serve.
UNREACHABLE = {
    (
        _DSA,
        "DeepseekSparseAttnBackend._forward_flashmla_kv",
    ): "only from a bfloat16 pool, which is refused at start with this kernel",
    (_POOLS, "MLATokenToKVPoolFP4.get_key_buffer"): "FP4 pools are refused at start",
}
# The modules of the backends that we serve with (dense, sparse), of the model's attention around them, of the pools.
_CONFIGURED = (
    _FLASHINFER,
    _DSA,
    _POOLS,
    "srt/models/deepseek_common/attention_forward_methods/forward_mha.py",
    "srt/models/deepseek_common/attention_forward_methods/forward_mla.py",
)


class Report(NamedTuple):
    """What the audit found; `faults` empty means passed."""

    version: str
    sites: list[Site]
    faults: list[str]


def audit(package: Path, version: str) -> Report:
    """Audit the sglang package in folder `package`, which says it is `version`."""
    faults = []
    wanted = known().get(version)
    if wanted is None:
        faults.append(
            f"SGLang {version} is not one that this plugin was checked against; install {' or '.join(sorted(known()))}."
        )
    else:
        for name, found in fingerprints(package).items():
            if found is None:
                faults.append(f"{name} is gone; the plugin relies on it.")
            elif found != wanted[name]:
                faults.append(f"{name} is not what the plugin was written for (patched, or a build of your own?).")
    sites = scan(package)
    for site in sites:
        if site.kind is Kind.WHOLE_POOL and _configured(site) and _remark(site) is None:
            faults.append(f"{site.path}:{site.line} ({site.function}) casts a whole pool and nothing replaces it.")
    return Report(version, sites, faults)


def _configured(site: Site) -> bool:
    """Tell whether a model served by us can come here; pools of other kinds than MLA's are not its own."""
    return site.path in _CONFIGURED and (site.path != _POOLS or site.function.startswith(("MLA", "DSA")))


def _remark(site: Site) -> str | None:
    place = (site.path, site.function)
    return REPLACED.get(place) or UNREACHABLE.get(place)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")
    parser.add_argument("--all", action="store_true", help="list casts of rows in use and dtype settings too")
    parser.add_argument(
        "--fingerprints", action="store_true", help="print the fingerprints of this SGLang, for developers, and stop"
    )


def run(args: argparse.Namespace) -> int:
    """Audit the installed SGLang; 0 when it passed, 1 when it did not, 2 when there is none."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        print("No SGLang is installed here; run this where the server runs.", file=sys.stderr)
        return 2
    package = Path(next(iter(spec.submodule_search_locations)))
    version = importlib.metadata.version("sglang")
    if args.fingerprints:
        print(json.dumps({version: fingerprints(package)}, indent=1))
        return 0
    report = audit(package, version)
    print(_as_json(report) if args.json else _as_text(report, package, args.all))
    return 1 if report.faults else 0


def _as_json(report: Report) -> str:
    sites = [
        {**site._asdict(), "kind": site.kind.name, "configured": _configured(site), "remark": _remark(site)}
        for site in report.sites
    ]
    return json.dumps({"sglang": report.version, "passed": not report.faults, "faults": report.faults, "sites": sites})


def _as_text(report: Report, package: Path, everything: bool) -> str:
    lines = [f"SGLang {report.version} in {package}"]
    for kind in Kind if everything else (Kind.WHOLE_POOL,):
        sites = [site for site in report.sites if site.kind is kind]
        lines.append(f"\n{len(sites)} places: {kind.value}")
        for site in sites:
            if kind is Kind.WHOLE_POOL:
                remark = _remark(site) or ("NOT REPLACED" if _configured(site) else "not ours to serve with")
                lines.append(f"  {site.path}:{site.line} {site.function}: {remark}")
            else:
                lines.append(f"  {site.path}:{site.line} {site.function}: {site.code.splitlines()[0]}")
    lines.append("")
    lines += [f"FAULT: {fault}" for fault in report.faults]
    passed = "Passed: no whole-pool cast is reachable as we serve."
    lines.append(f"Failed: {len(report.faults)} faults." if report.faults else passed)
    return "\n".join(lines)
