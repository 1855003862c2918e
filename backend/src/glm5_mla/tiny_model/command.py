"""`glm5-mla tiny-model`: write the tiny model into a directory."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from glm5_mla import __version__
from glm5_mla.tiny_model import weights
from glm5_mla.tiny_model.config import config
from glm5_mla.tiny_model.tokenizer import tokenizer, tokenizer_config

# Says that this directory is ours, of which recipe, and whether it is whole.
MARKER = "glm5-tiny-model.json"


class ForeignFiles(Exception):
    """The directory holds a model that this program did not write."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the model goes; made if absent")
    parser.add_argument("--layers", type=int, default=4, metavar="N", help="layers of the model (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Write the model, or find it whole; 0 when it is there."""
    if args.layers < 1:
        print(f"--layers {args.layers}: a model has at least one layer", file=sys.stderr)
        return 2
    try:
        written = make(args.out, args.layers)
    except (ForeignFiles, OSError) as error:
        print(f"tiny model not written: {error}", file=sys.stderr)
        return 1
    print(f"{args.out}: {'written' if written else 'already there'}, {args.layers} layers, random weights")
    return 0


def make(directory: Path, layers: int) -> bool:
    """Write the model into `directory`; return False when it is there already.

    Safe to run again after being killed at any point, and to run twice at once: each file appears whole, and the marker
    says "complete" only after all of them. Files are readable by any user whatever the umask. Raises ForeignFiles when
    `directory` holds a model of somebody else's, and OSError when it can't be written.
    """
    recipe = {"version": __version__, "layers": layers, "seed": weights.SEED}
    marker = directory / MARKER
    if _read(marker) == {**recipe, "complete": True}:
        return False
    model = config(layers)
    files: dict[str, Callable[[BinaryIO], object]] = {
        "model.safetensors": lambda file: weights.write(model, file),
        "tokenizer.json": lambda file: file.write(_json(tokenizer())),
        "tokenizer_config.json": lambda file: file.write(_json(tokenizer_config(model["max_position_embeddings"]))),
        "generation_config.json": lambda file: file.write(_json({"eos_token_id": model["eos_token_id"]})),
        "config.json": lambda file: file.write(_json(model)),
    }
    foreign = [name for name in files if (directory / name).exists()]
    if foreign and not marker.exists():
        raise ForeignFiles(f"{directory} already holds {', '.join(foreign)}: give another directory, or empty it")
    if not directory.exists():
        directory.mkdir(parents=True)
        directory.chmod(0o755)
    for name, content in {
        MARKER: lambda file: file.write(_json({**recipe, "complete": False})),
        **files,
    }.items():
        _write(directory / name, content)
    _write(marker, lambda file: file.write(_json({**recipe, "complete": True})))
    return True


def _read(marker: Path) -> object:
    try:
        return json.loads(marker.read_text())
    except (OSError, ValueError):
        return None


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


def _write(path: Path, content: Callable[[BinaryIO], object]) -> None:
    """Let `content` write the file under another name, bring it to disk, then give it its name."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("wb") as file:
            content(file)
            file.flush()
            os.fsync(file.fileno())
        scratch.chmod(0o644)
        scratch.rename(path)
    finally:
        scratch.unlink(missing_ok=True)
