"""Whether weights and KV pool plainly can't fit the GPUs asked for: said before a pod is tried; none is held back."""

import re
from collections.abc import Mapping

from glm5_operator.resources.context import Context
from glm5_operator.resources.pod_template import merged_pod_template

from .conditions import Condition

_GIB = 2**30

# Memory of a GPU in GiB by its label nvidia.com/gpu.product, where that names no size. NVIDIA's data sheets give these
# numbers in GB; the driver reports a little less than as many GiB (143,771 MiB of an H200), so they are upper bounds.
_PRODUCT_GIB = {
    "NVIDIA-H200": 141,
    "NVIDIA-H200-NVL": 141,
    "NVIDIA-H100-NVL": 94,
    "NVIDIA-H20": 96,
    "NVIDIA-B200": 192,
    "NVIDIA-GB200": 192,
    "NVIDIA-B300": 288,
    "NVIDIA-GB300": 288,
    "NVIDIA-L40S": 48,
    "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition": 96,
}
_PRODUCT_LABEL, _MEMORY_LABEL = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
_SIZE_IN_PRODUCT = re.compile(r"-(\d+)GB(?:-|$)")

# GLM-5 has 744 billion parameters; a parameter takes two bytes in the repository without suffix, one in the FP8 one.
_GLM5_PARAMETERS = 744_000_000_000
_REPOSITORY_BYTES = {"zai-org/glm-5": 2 * _GLM5_PARAMETERS, "zai-org/glm-5-fp8": _GLM5_PARAMETERS}

# Files hold more than is loaded: the layer for multi-token prediction is left out without speculative decoding.
_LOADED_SHARE = 0.95

# A token's row in one layer: latent 512 and rotary 64 (kv_lora_rank, qk_rope_head_dim); GLM-5 has 78 layers. Each rank
# holds all rows: MLA has one KV head.
_ROW_VALUES, _LAYERS = 512 + 64, 78
_VALUE_BYTES = {"fp8_e4m3": 1, "bfloat16": 2}

# With these the GPUs need not hold the weights as they lie on disk.
_ELSEWHERE = (
    "--cpu-offload-gb",
    "--offload-",
    "--kt-",
    "--enable-paged-experts",
    "--load-format",
    "--modelopt-quant",
    "--quantize-and-serve",
    "--rl-quant-profile",
)


def weight_bytes(context: Context, told: int | None) -> int | None:
    """Bytes of the weights: as the hub has told, or at least, by the repository's name; None where nothing is known."""
    if context.spec.model.path:  # one directory of a repository, and the hub tells of the whole
        return None
    return told or _REPOSITORY_BYTES.get(_repository(context))


def pool_bytes(context: Context) -> int:
    """Bytes of the KV pool on each GPU; 0 where SGLang chooses its tokens, or the layers of the model are not known."""
    cache = context.spec.kv_cache
    if _repository(context) not in _REPOSITORY_BYTES:
        return 0
    return (cache.max_tokens or 0) * _ROW_VALUES * _LAYERS * _VALUE_BYTES[cache.dtype]


def gpu_bytes(context: Context) -> int | None:
    """Memory of one GPU at most, as the pod's node selector promises it; None where it promises nothing known."""
    if context.spec.gpus.resource_name != "nvidia.com/gpu":  # a MIG profile, or another maker's
        return None
    selector = merged_pod_template(context)[0]["spec"].get("nodeSelector") or {}
    if not isinstance(selector, Mapping):
        return None
    memory = str(selector.get(_MEMORY_LABEL, ""))
    if memory.isdigit():  # GPU feature discovery writes MiB
        return int(memory) * 2**20
    product = str(selector.get(_PRODUCT_LABEL, "")).removesuffix("-SHARED")
    if "-MIG-" in product:
        return None
    named = _SIZE_IN_PRODUCT.search(product)
    size = int(named[1]) if named else _PRODUCT_GIB.get(product)
    return size * _GIB if size is not None else None


def fits(context: Context, told: int | None) -> Condition | None:
    """The condition FitsGPUs; None where sizes are not known. `told` are the bytes of the weights, from the hub."""
    spec = context.spec
    gpu = gpu_bytes(context)
    weights = weight_bytes(context, told)
    reduced = spec.model.quantization or any(argument.startswith(_ELSEWHERE) for argument in spec.server.extra_args)
    if gpu is None or weights is None or reduced:
        return None
    ranks = context.tensor_parallel_size
    usable = gpu * (spec.kv_cache.memory_fraction or 1.0)
    share = weights * _LOADED_SHARE / ranks
    pool = pool_bytes(context)
    need = f"{_gib(share)} of weights (one of {ranks} ranks)"
    if pool:
        need += f" and {_gib(pool)} of KV pool ({spec.kv_cache.max_tokens} tokens in {_LAYERS} layers)"
    have = f"{_gib(usable)} of a GPU's {_gib(gpu)}"
    if share + pool <= usable:
        return Condition("FitsGPUs", True, "Fits", f"each GPU gets {need}, at least, into {have}")
    if share > usable:
        remedy = "take more or larger GPUs (spec.gpus), or weights of fewer bits"
    else:
        remedy = "lower spec.kvCache.maxTokens, or take more or larger GPUs (spec.gpus)"
    return Condition("FitsGPUs", False, "TooLarge", f"each GPU would get {need}, but has {have}: {remedy}")


def _repository(context: Context) -> str:
    hub = context.spec.model.source.hugging_face
    return hub.repo.lower() if hub is not None else ""


def _gib(size: float) -> str:
    return f"{size / _GIB:.3g} GiB"
