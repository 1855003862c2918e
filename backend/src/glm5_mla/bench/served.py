"""Real SGLang servers for benchmarks: a weightless model with GLM-5's attention shape, a server process, requests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, NamedTuple

from glm5_mla.timing.rankreader import RankReader

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from glm5_mla.timing.rankreader import Snapshot

VOCABULARY = 32000

# Dense MLA with the shapes that one of 8 GPUs has of GLM-5: 78 layers, 8 query heads, latent 512 + 64. The hidden size
# and the MLPs are small, so that attention and casts are what a step is made of.
SHAPE = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "torch_dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "hidden_size": 2048,
    "intermediate_size": 2048,
    "moe_intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 512,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_layer_freq": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 262144,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "use_cache": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


class Way(NamedTuple):
    """A way to serve that is measured."""

    name: str
    backend: str
    kv_cast: str | None
    kernel: str
    timing: bool = True


WAYS = {
    way.name: way
    for way in (
        Way("never-cuda", "flashinfer", "Never", "cuda"),
        Way("never-flashinfer", "flashinfer", "Never", "flashinfer"),
        Way("never-triton", "flashinfer", "Never", "triton"),
        Way("active-rows", "flashinfer", "ActiveRows", "flashinfer"),
        Way("whole-pool", "flashinfer", "WholePool", "flashinfer"),
        Way("untimed-cuda", "flashinfer", "Never", "cuda", timing=False),
        Way("untimed-flashinfer", "flashinfer", "Never", "flashinfer", timing=False),
        Way("sglang-triton", "triton", None, "sglang-triton", timing=False),
    )
}


class Reply(NamedTuple):
    """A generation as its client saw it."""

    seconds: float
    output_tokens: int
    cached_tokens: int


def write_model(folder: Path, layers: int) -> None:
    """Write the model's only file, its configuration; weights are dummies of SGLang's."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = {**SHAPE, "num_hidden_layers": layers, "first_k_dense_replace": layers}
    (folder / "config.json").write_text(json.dumps(shape))


class Server:
    """One SGLang server on 127.0.0.1, ended with all that it started by `stop`."""

    def __init__(self, way: Way, model: Path, work: Path, port: int, arguments: Sequence[str]) -> None:
        self.way, self.port = way, port
        self.run_dir = work / f"run-{way.name}"
        self.log = work / f"{way.name}.log"
        environment = {
            **os.environ,
            "GLM5_RUN_DIR": str(self.run_dir),
            "GLM5_KERNEL": "auto" if way.kv_cast is None else way.kernel,
            "GLM5_STEP_TIMING": "on" if way.timing else "off",
            "HF_HUB_OFFLINE": "1",
        }
        if way.kv_cast is not None:
            environment["GLM5_KV_CAST"] = way.kv_cast
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--load-format", "dummy"]
        command += ["--attention-backend", way.backend, "--kv-cache-dtype", "fp8_e4m3", "--skip-tokenizer-init"]
        command += ["--grammar-backend", "none", "--skip-server-warmup", "--host", "127.0.0.1", "--port", str(port)]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, *arguments], stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def wait(self, deadline: float) -> None:
        """Wait until the server generates; raises RuntimeError with the end of its log when it dies or is too slow."""
        while True:
            if self._process.poll() is not None or time.time() > deadline:
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])
                raise RuntimeError(f"{self.way.name} did not start:\n{tail}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health_generate", timeout=5)
                return
            time.sleep(0.5)

    def stop(self) -> None:
        """End the server and its ranks."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> Reply:
        """Generate exactly `new_tokens` for each prompt of token ids, all of them in one batch."""
        sampling = {"max_new_tokens": new_tokens, "ignore_eos": True, "temperature": 0}
        start = time.perf_counter()
        replies = self._post(
            "/generate", {"input_ids": [list(prompt) for prompt in prompts], "sampling_params": sampling}
        )
        seconds = time.perf_counter() - start
        meta = [reply["meta_info"] for reply in json.loads(replies)]
        return Reply(seconds, sum(m["completion_tokens"] for m in meta), sum(m["cached_tokens"] for m in meta))

    def start_profile(self, folder: Path, steps: int) -> None:
        """Have the next `steps` forwards traced by torch's profiler into `folder`."""
        self._post("/start_profile", {"output_dir": str(folder), "num_steps": steps, "activities": ["GPU"]})

    def figures(self) -> Snapshot:
        """Read what rank 0 has exported."""
        return RankReader(self.run_dir / "rank-0").read()

    def _post(self, path: str, body: dict[str, Any]) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as reply:
            text: bytes = reply.read()
        return text


def prompts(requests: int, tokens: int) -> list[list[int]]:
    """Make seeded prompts; request i's are the same whatever the length, so that a longer one extends a cached one."""
    return [random.Random(i).choices(range(2, VOCABULARY), k=tokens) for i in range(requests)]
