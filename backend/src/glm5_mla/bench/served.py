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
PORT_STEP = 20
"""Servers side by side get ports this far apart; NCCL's is half of it above a server's own."""

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

# The same as GLM-5's own architecture, with its sparse indexer.
SPARSE = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "max_position_embeddings": 202752,
}


class Way(NamedTuple):
    """A way to serve that is measured. `pool`: rows of its KV pool, where they are not what the run asks for."""

    name: str
    backend: str
    kv_cast: str | None
    kernel: str
    timing: bool = True
    sparse: bool = False
    page_size: int = 1
    tensor_parallel: int = 1
    pool: int | None = None

    @property
    def model(self) -> str:
        """The folder of the model that it is measured with: 8 query heads for each GPU."""
        return f"{'sparse' if self.sparse else 'dense'}-{self.tensor_parallel}"


WAYS = {
    way.name: way
    for way in (
        Way("never-cuda", "flashinfer", "Never", "cuda"),
        Way("never-flashinfer", "flashinfer", "Never", "flashinfer"),
        Way("never-triton", "flashinfer", "Never", "triton"),
        Way("active-rows", "flashinfer", "ActiveRows", "flashinfer"),
        Way("whole-pool", "flashinfer", "WholePool", "flashinfer"),
        # What the timing costs: two servers with it and two without; equal ones differ too, and that shows.
        *(
            Way(f"{which}-{number}", "flashinfer", "Never", "cuda", timing=which == "timed", pool=65_536)
            for number in (1, 2)
            for which in ("timed", "untimed")
        ),
        Way("sglang-triton", "triton", None, "sglang-triton", timing=False),
        Way("sparse", "dsa", None, "sglang-dsa", sparse=True, page_size=64),
    )
}


class Reply(NamedTuple):
    """A generation as its client saw it."""

    seconds: float
    output_tokens: int
    cached_tokens: int
    output_ids: list[list[int]]
    likely: list[list[dict[int, float]]]
    """For each request and output position the likeliest tokens and their log-probabilities, if asked for."""


def write_model(work: Path, way: Way, layers: int) -> Path:
    """Write the only file of a way's model, its configuration, and return its folder; weights are SGLang's dummies."""
    folder = work / way.model
    folder.mkdir(parents=True, exist_ok=True)
    heads = SHAPE["num_attention_heads"] * way.tensor_parallel  # type: ignore[operator]
    shape = {**SHAPE, **(SPARSE if way.sparse else {}), "num_hidden_layers": layers, "first_k_dense_replace": layers}
    shape |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    (folder / "config.json").write_text(json.dumps(shape))
    return folder


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
            # Servers that start side by side fill the GPUs at different times, which SGLang takes for a fault.
            "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "false",
        }
        if way.kv_cast is not None:
            environment["GLM5_KV_CAST"] = way.kv_cast
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)]
        command += ["--attention-backend", way.backend, "--kv-cache-dtype", "fp8_e4m3", "--skip-tokenizer-init"]
        command += ["--grammar-backend", "none", "--skip-server-warmup", "--host", "127.0.0.1", "--port", str(port)]
        # Left to itself, SGLang picks a port for NCCL that another server may pick before it is bound.
        command += ["--nccl-port", str(port + PORT_STEP // 2)]
        command += ["--page-size", str(way.page_size), "--tp-size", str(way.tensor_parallel)]
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

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, likely: int = 0) -> Reply:
        """Generate exactly `new_tokens` for each prompt of token ids, all of them in one batch; greedily.

        With `likely`, the reply tells that many of the likeliest tokens at every output position.
        """
        sampling = {"max_new_tokens": new_tokens, "ignore_eos": True, "temperature": 0}
        body: dict[str, Any] = {"input_ids": [list(prompt) for prompt in prompts], "sampling_params": sampling}
        if likely:
            body |= {"return_logprob": True, "top_logprobs_num": likely}
        start = time.perf_counter()
        text = self.post("/generate", body)
        seconds = time.perf_counter() - start
        replies = json.loads(text)
        tokens, cached = (sum(r["meta_info"][name] for r in replies) for name in ("completion_tokens", "cached_tokens"))
        tops = [
            [{token: value for value, token, _ in position} for position in reply["meta_info"]["output_top_logprobs"]]
            if likely
            else []
            for reply in replies
        ]
        return Reply(seconds, tokens, cached, [reply["output_ids"] for reply in replies], tops)

    def start_profile(self, folder: Path, steps: int) -> None:
        """Have the next `steps` forwards traced by torch's profiler into `folder`."""
        self.post("/start_profile", {"output_dir": str(folder), "num_steps": steps, "activities": ["GPU"]})

    def figures(self, rank: int = 0) -> Snapshot:
        """Read what a rank has exported."""
        return RankReader(self.run_dir / f"rank-{rank}").read()

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        """Post a JSON body and return the answer's text."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as reply:
            text: bytes = reply.read()
        return text


def prompts(requests: int, tokens: int, vocabulary: int = VOCABULARY) -> list[list[int]]:
    """Make seeded prompts; request i's are the same whatever the length, so that a longer one extends a cached one."""
    return [random.Random(i).choices(range(2, vocabulary), k=tokens) for i in range(requests)]
