"""`glm5-mla`: one program, one module per command, and only the asked-for command's module is imported.

A command is a module with two functions: `add_arguments(parser)`, and `run(args)` which returns the exit status. To add
one, put a line into `COMMANDS`. Importing lazily keeps the exporter small: it runs beside the server for months and
must never load torch.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from glm5_mla import __version__


class Command(NamedTuple):
    """Where a command lives, and its line in `glm5-mla --help`."""

    module: str
    help: str


COMMANDS: dict[str, Command] = {
    "audit": Command("glm5_mla.audit.command", "check the installed SGLang's source for whole-pool casts and changes"),
    "doctor": Command("glm5_mla.doctor", "say what this machine's card and libraries can do for the backend"),
    "download": Command("glm5_mla.download", "fetch a Hugging Face repository into a directory, once"),
    "exporter": Command("glm5_mla.exporter.supervisor", "serve the decode figures to Prometheus and the operator"),
    "serve": Command("glm5_mla.serve", "prove that the backend is in place and run the SGLang server"),
    "tiny-model": Command("glm5_mla.tiny_model.command", "write a small GLM-5-shaped model with random weights"),
    "top": Command("glm5_mla.top.command", "show the decode loop of running deployments in the terminal"),
}


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """Return the parser of the whole program; only the command `chosen` gets its own arguments."""
    parser = argparse.ArgumentParser(prog="glm5-mla", description="FP8 MLA attention for SGLang, and its clocks.")
    parser.add_argument("--version", action="version", version=f"glm5-mla {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=command.help, description=command.help)
        if name == chosen:
            importlib.import_module(command.module).add_arguments(subparser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    parsed = build_parser(chosen).parse_args(arguments)
    status: int = importlib.import_module(COMMANDS[parsed.command].module).run(parsed)
    return status
