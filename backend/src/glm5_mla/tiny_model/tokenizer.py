"""A byte-level tokenizer: one token a byte, any text in, any text out, and GLM's chat markers.

In the format of Hugging Face's `tokenizers`: byte-level BPE with an empty list of merges.
"""

from typing import Any

END_OF_TEXT = "<|endoftext|>"
SPECIAL = (END_OF_TEXT, "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|unused|>")

CHAT_TEMPLATE = (
    "[gMASK]<sop>"
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}{{ '<|observation|>\n' }}"
    "{%- else %}{{ '<|' + message.role + '|>\n' }}{%- endif %}"
    "{%- if message.content is string %}{{ message.content }}"
    "{%- else %}{%- for part in message.content or [] %}{{ part.text }}{%- endfor %}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{%- endif %}"
)


def byte_characters() -> list[str]:
    """Return the visible character that stands for each byte in a byte-level BPE vocabulary.

    GPT-2's mapping, which the `ByteLevel` pre-tokenizer and decoder apply: printable Latin-1 bytes stand for
    themselves, the other 68 are counted up from U+0100.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = (code for code in range(256) if code not in printable)
    stand_in = {code: chr(256 + place) for place, code in enumerate(others)}
    return [stand_in.get(code, chr(code)) for code in range(256)]


VOCABULARY = {token: number for number, token in enumerate((*byte_characters(), *SPECIAL))}
# Tokens whose text reads as a plain letter, digit, mark or space: the only ones that the model is made to say.
READABLE = tuple(range(ord(" "), ord("~") + 1))


def tokenizer() -> dict[str, Any]:
    """Return tokenizer.json."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": VOCABULARY[token],
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token in SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": VOCABULARY,
            "merges": [],
        },
    }


def tokenizer_config(context_length: int) -> dict[str, Any]:
    """Return tokenizer_config.json for a model that takes `context_length` tokens."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "chat_template": CHAT_TEMPLATE,
    }
