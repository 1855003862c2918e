"""Compile the Triton kernels for a card that need not be here, and print what they take of it as JSON.

python compile_kernels.py CAPABILITY          (90 for an H200, 120 for an RTX PRO 6000)
"""

import json
import re
import subprocess
import sys
import tempfile

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from glm5_mla.kernels import KV_LORA_RANK, ROPE_DIM, rowcast_triton
from glm5_mla.kernels import triton as decode
from glm5_mla.timing import stamps_triton

LATENT = {"LATENT": KV_LORA_RANK}
PARTIAL_TYPES = {
    "q_nope": "*bf16",
    "q_rope": "*bf16",
    "pool": "*fp8e4nv",
    **dict.fromkeys(("qo_indptr", "kv_indptr", "kv_indices"), "*i32"),
    **dict.fromkeys(("partial", "partial_m", "partial_l"), "*fp32"),
    **dict.fromkeys(("q_nope_token", "q_nope_head", "q_rope_token", "q_rope_head", "row_stride"), "i32"),
    "score_scale": "fp32",
}
PARTIAL_SHAPE = {
    **LATENT,
    "ROPE": ROPE_DIM,
    "COLUMNS": decode.BLOCK_COLUMNS,
    "ROWS": decode.BLOCK_ROWS,
    "WEIGHT_BITS": decode.WEIGHT_BITS,
}
COMBINE_TYPES = {
    **dict.fromkeys(("partial", "partial_m", "partial_l", "lse"), "*fp32"),
    "out": "*bf16",
    "out_scale": "fp32",
}
CAST_TYPES = {"pool": "*fp8e4nv", "indptr_end": "*i32", "indices": "*i32", "out": "*bf16"}
CAST_SHAPE = {"LORA": KV_LORA_RANK, "ROPE": ROPE_DIM, "ROWS": rowcast_triton.ROWS_PER_PROGRAM}

# Name: function, types of arguments, constants.
KERNELS = {
    **{
        f"partial, {heads} heads": (decode._partial, PARTIAL_TYPES, {**PARTIAL_SHAPE, "heads": heads, "splits": 64})
        for heads in (8, 128)
    },
    "combine": (decode._combine, COMBINE_TYPES, {**LATENT, "splits": decode.MOST_SPLITS, "HAS_LSE": True}),
    "row cast": (rowcast_triton._cast_rows, CAST_TYPES, CAST_SHAPE),
    **{
        name: (getattr(stamps_triton, name), {"state": "*i64"}, {})
        for name in ("stamp_start", "stamp_mark", "stamp_idle", "stamp_cast", "stamp_attention")
    },
    "stamp_end": (
        stamps_triton.stamp_end,
        {"state": "*i64", "ring": "*i64"},
        {"RING": 256, "RECORD": stamps_triton.RECORD},
    ),
}


def measure(capability, function, types, constants):
    """Compile; returns bytes of shared memory, registers a thread and bytes spilled a thread."""
    signature = {name: types.get(name, "constexpr") for name in function.arg_names}
    source = ASTSource(fn=function, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", cubin.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(rf"{what}:(\d+)", said).group(1)) for what in ("REG", "STACK"))
    return {"shared": compiled.metadata.shared, "registers": registers, "stack": stack}


if __name__ == "__main__":
    capability = int(sys.argv[1])
    print(json.dumps({name: measure(capability, *kernel) for name, kernel in KERNELS.items()}))
