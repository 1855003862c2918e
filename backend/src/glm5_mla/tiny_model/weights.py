"""model.safetensors of the tiny model: random BF16 weights from a seed."""

import json
import random
import struct
from collections.abc import Iterator
from statistics import NormalDist
from typing import Any, BinaryIO, NamedTuple

from glm5_mla.tiny_model.tokenizer import READABLE

SEED = 5
# Values that a random byte stands for: the middles of 256 equally likely slices of the normal distribution.
QUANTILES = [NormalDist().inv_cdf((number + 0.5) / 256) for number in range(256)]


class Weight(NamedTuple):
    """A tensor of `shape`, normally distributed with standard deviation `scale`; `scale` None: all ones."""

    name: str
    shape: tuple[int, ...]
    scale: float | None


def bfloat16(value: float) -> bytes:
    """Round `value` to BF16 (to nearest, ties to even), little endian."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def weights(config: dict[str, Any]) -> Iterator[Weight]:
    """Yield the tensors of a dense MLA model as DeepseekV2ForCausalLM names them.

    A linear layer's scale is `gain` / sqrt(inputs): with gain 1 it keeps the size of what passes through. Attention
    gets gain 2, so that what it reads decides the next token: a fault in attention then shows as other text.
    """

    def linear(name: str, outputs: int, inputs: int, gain: float = 1.0) -> Weight:
        return Weight(f"{name}.weight", (outputs, inputs), gain / inputs**0.5)

    def norm(name: str, size: int) -> Weight:
        return Weight(f"{name}.weight", (size,), None)

    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    q_rank, kv_rank, rope = config["q_lora_rank"], config["kv_lora_rank"], config["qk_rope_head_dim"]
    nope, value = config["qk_nope_head_dim"], config["v_head_dim"]

    yield Weight("model.embed_tokens.weight", (config["vocab_size"], hidden), 1.0)
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        yield norm(f"{layer}.input_layernorm", hidden)
        yield linear(f"{layer}.self_attn.q_a_proj", q_rank, hidden)
        yield norm(f"{layer}.self_attn.q_a_layernorm", q_rank)
        yield linear(f"{layer}.self_attn.q_b_proj", heads * (nope + rope), q_rank, gain=2)
        yield linear(f"{layer}.self_attn.kv_a_proj_with_mqa", kv_rank + rope, hidden)
        yield norm(f"{layer}.self_attn.kv_a_layernorm", kv_rank)
        yield linear(f"{layer}.self_attn.kv_b_proj", heads * (nope + value), kv_rank, gain=2)
        yield linear(f"{layer}.self_attn.o_proj", hidden, heads * value, gain=2)
        yield norm(f"{layer}.post_attention_layernorm", hidden)
        yield linear(f"{layer}.mlp.gate_proj", inner, hidden)
        yield linear(f"{layer}.mlp.up_proj", inner, hidden)
        yield linear(f"{layer}.mlp.down_proj", hidden, inner)
    yield norm("model.norm", hidden)
    # Gain 4: the likeliest token stands out, so that rounding does not decide which one it is.
    yield linear("lm_head", config["vocab_size"], hidden, gain=4)


def values(weight: Weight, generator: random.Random) -> bytes:
    """Return the BF16 values of one tensor in row-major order."""
    count = 1
    for size in weight.shape:
        count *= size
    if weight.scale is None:
        return bfloat16(1.0) * count
    table = [bfloat16(quantile * weight.scale) for quantile in QUANTILES]
    drawn = generator.randbytes(count)
    data = bytearray(2 * count)
    data[0::2] = drawn.translate(bytes(value[0] for value in table))
    data[1::2] = drawn.translate(bytes(value[1] for value in table))
    if weight.name == "lm_head.weight":
        _silence(data, rows=weight.shape[0], row_bytes=2 * weight.shape[1])
    return bytes(data)


def _silence(data: bytearray, rows: int, row_bytes: int) -> None:
    """Make all tokens but the readable ones unlikely: a score of zero, among readable ones of deviation 4.

    So the noise is printable text, whole at every token of a stream, and the end of text hardly ever comes by chance.
    """
    for row in set(range(rows)) - set(READABLE):
        data[row * row_bytes : (row + 1) * row_bytes] = bytes(row_bytes)


def write(config: dict[str, Any], file: BinaryIO) -> None:
    """Write the weights of a model with this config.json in the safetensors format."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for weight in weights(config):
        begin = end
        size = 2
        for dimension in weight.shape:
            size *= dimension
        end += size
        header[weight.name] = {"dtype": "BF16", "shape": weight.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # values begin at a multiple of 8 bytes
    file.write(struct.pack("<Q", len(text)) + text)
    generator = random.Random(SEED)
    for weight in weights(config):
        file.write(values(weight, generator))
