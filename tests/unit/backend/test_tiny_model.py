"""The tiny model: written whole or not at all, the same bytes everywhere, readable by SGLang, its text printable."""

import hashlib
import json
import os
import random
import struct
from statistics import fmean, pstdev

import pytest

from glm5_mla.cli import main
from glm5_mla.tiny_model import weights
from glm5_mla.tiny_model.command import MARKER
from glm5_mla.tiny_model.config import config
from glm5_mla.tiny_model.tokenizer import CHAT_TEMPLATE, VOCABULARY, byte_characters

FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    MARKER,
}


@pytest.fixture
def model(tmp_path):
    assert main(["tiny-model", "--out", str(tmp_path / "model"), "--layers", "1"]) == 0
    return tmp_path / "model"


def test_a_model_is_all_its_files_and_nothing_else(model):
    assert {path.name for path in model.iterdir()} == FILES


def test_any_user_can_read_it_whatever_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        assert main(["tiny-model", "--out", str(tmp_path / "a/model"), "--layers", "1"]) == 0
    finally:
        os.umask(before)
    assert (tmp_path / "a/model").stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "a/model").iterdir()} == {0o644}


def test_the_same_recipe_gives_the_same_bytes(model):
    digest = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    assert digest == "cbf053dd9e4608a4739f967faf702fccb6068ea2133c4779b10bd157d307a29c"


def test_a_second_run_leaves_it_alone(model, capsys):
    before = {path.name: path.stat().st_mtime_ns for path in model.iterdir()}
    assert main(["tiny-model", "--out", str(model), "--layers", "1"]) == 0
    assert "already there" in capsys.readouterr().out
    assert {path.name: path.stat().st_mtime_ns for path in model.iterdir()} == before


@pytest.mark.parametrize("missing", sorted(FILES - {MARKER}))
def test_a_killed_run_is_made_whole_by_the_next(model, missing):
    marker = json.loads((model / MARKER).read_text())
    (model / MARKER).write_text(json.dumps({**marker, "complete": False}))
    (model / missing).unlink()
    assert main(["tiny-model", "--out", str(model), "--layers", "1"]) == 0
    assert {path.name for path in model.iterdir()} == FILES
    assert json.loads((model / MARKER).read_text())["complete"] is True


def test_another_recipe_replaces_it(model):
    assert main(["tiny-model", "--out", str(model), "--layers", "2"]) == 0
    assert json.loads((model / "config.json").read_text())["num_hidden_layers"] == 2


def test_somebody_else_s_model_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    assert main(["tiny-model", "--out", str(tmp_path)]) == 1
    assert (tmp_path / "config.json").read_text() == "{}"
    message = capsys.readouterr().err
    assert str(tmp_path) in message
    assert "config.json" in message


def test_a_directory_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["tiny-model", "--out", str(tmp_path / "file/model")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_no_layer_is_refused(tmp_path, capsys):
    assert main(["tiny-model", "--out", str(tmp_path / "model"), "--layers", "0"]) == 2
    assert "--layers 0" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.0, 0x3F80), (-2.0, 0xC000), (1 + 2**-8, 0x3F80), (1 + 3 * 2**-8, 0x3F82), (1 + 2**-8 + 2**-20, 0x3F81)],
)
def test_bfloat16_rounds_to_nearest_and_ties_to_even(value, bits):
    assert int.from_bytes(weights.bfloat16(value), "little") == bits


def test_weights_have_the_deviation_they_were_asked_for():
    data = weights.values(weights.Weight("w", (100, 200), 0.25), random.Random(1))
    numbers = [struct.unpack("<f", b"\0\0" + data[at : at + 2])[0] for at in range(0, len(data), 2)]
    assert pstdev(numbers) == pytest.approx(0.25, rel=0.02)
    assert fmean(numbers) == pytest.approx(0, abs=0.01)


def test_attention_has_glm5_s_row_and_head_sizes():
    made = config(3)
    assert (made["kv_lora_rank"], made["qk_rope_head_dim"]) == (512, 64)
    assert (made["qk_nope_head_dim"], made["v_head_dim"], made["num_attention_heads"]) == (192, 256, 8)
    assert made["first_k_dense_replace"] == made["num_hidden_layers"] == 3


def test_every_byte_has_a_token_and_the_model_a_row_for_each():
    assert len(set(byte_characters())) == 256
    assert [VOCABULARY[character] for character in byte_characters()] == list(range(256))
    assert config(1)["vocab_size"] == len(VOCABULARY) == 264


@pytest.mark.sglang
def test_any_text_survives_the_tokenizer(model):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    text = "Grüße, 世界! 🦙\n\ttabs <|not special|> \x00\x7f"
    ids = tokenizer.encode(text)
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == len(VOCABULARY)


@pytest.mark.sglang
def test_a_chat_becomes_glm_s_markers_and_ends_where_the_assistant_begins(model):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHi<|assistant|>\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids[:3] == [VOCABULARY["[gMASK]"], VOCABULARY["<sop>"], VOCABULARY["<|system|>"]]
    assert CHAT_TEMPLATE in json.loads((model / "tokenizer_config.json").read_text()).values()


@pytest.mark.sglang
def test_the_weights_are_the_ones_that_the_architecture_has(model):
    from safetensors import safe_open

    with safe_open(model / "model.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert tensors["model.layers.0.self_attn.kv_a_proj_with_mqa.weight"].shape == (576, 256)
    assert str(tensors["lm_head.weight"].dtype) == "torch.bfloat16"
    assert tensors["lm_head.weight"][VOCABULARY["<|endoftext|>"]].abs().sum() == 0
    assert tensors["lm_head.weight"][ord("A")].float().std() == pytest.approx(4 / 16, rel=0.2)
