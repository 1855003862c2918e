"""Settings that SGLang needs on a CPU without its compiled kernels; imported whenever this environment's Python starts.

Defaults only: what the environment already says stays.
"""

import os

SETTINGS = {
    "SGLANG_USE_CPU_ENGINE": "1",  # else SGLang's rotary embedding looks for vLLM
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",  # the backend name `flashinfer` is ours; FlashInfer isn't here
    "SGLANG_NCCL_SO_PATH": "/nonexistent/libnccl.so",  # tensor parallel ranks talk over gloo
    "OMP_WAIT_POLICY": "PASSIVE",  # waiting threads that spin starve the other processes: 3 tokens a second, not 60
    "TORCHDYNAMO_DISABLE": "1",  # torch.compile would call Triton
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)
