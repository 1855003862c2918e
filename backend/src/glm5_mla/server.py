"""`python -m glm5_mla.server ARGUMENTS`: check that this server may serve, then become SGLang's.

What `glm5-mla serve` runs. SGLang goes on without a plugin that failed, with a backend that is not ours, and logs API
keys that are given as arguments: this starts it such that none of that can happen.
"""

import argparse
import functools
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from glm5_mla import secret
from glm5_mla.refusal import Refusal
from glm5_mla.settings import Settings

API_KEY_VARIABLE = "GLM5_API_KEY_FILE"
# SGLang's list of CPU cores for each rank on a CPU, ranks separated by `|`.
CPU_BINDING_VARIABLE = "SGLANG_CPU_OMP_THREADS_BIND"

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Serve until asked to stop; returns the exit status."""
    from sglang.srt.utils import kill_process_tree

    try:
        settings = Settings.from_environment()
        server_args = prepare(arguments)
        serve(server_args, settings.run_dir)
    except Refusal as refusal:
        return refusal.end()
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
    return 0


def prepare(arguments: Sequence[str]) -> Any:
    """Return SGLang's ServerArgs, resolved. Raises `Refusal` for bad arguments, or when our backend isn't in place."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    from glm5_mla.sglang import verify

    if any(argument.partition("=")[0] == "--config" for argument in arguments):
        raise Refusal(
            "BadArgument",
            "--config is not taken: SGLang would merge the file unseen with what the operator sets; give its arguments "
            "one by one.",
        )
    load_plugins()
    verify.process()
    # An abbreviation (--kv-cache-dty) would pass the operator's list of the arguments that fields own.
    whole_names = functools.partialmethod(argparse.ArgumentParser.__init__, allow_abbrev=False)
    with (
        mock.patch.object(argparse.ArgumentParser, "__init__", whole_names),
        mock.patch.object(argparse.ArgumentParser, "error", _refuse_argument),
    ):
        server_args = _checked(prepare_server_args, list(arguments))
    _check_model(server_args.model_path)
    if server_args.api_key is not None:
        raise Refusal(
            "ApiKeyInArguments",
            f"--api-key would be readable in the process list and in logs: put the key into a file and name it in "
            f"{API_KEY_VARIABLE}.",
        )
    if os.environ.get(API_KEY_VARIABLE):
        server_args.api_key = secret.read(os.environ[API_KEY_VARIABLE])
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1" and server_args.tp_size > 1:
        os.environ.setdefault(CPU_BINDING_VARIABLE, cpu_binding(server_args.tp_size, os.sched_getaffinity(0)))
    _checked(server_args.resolve_once)
    return server_args


def serve(server_args: Any, run_dir: str) -> None:
    """Run SGLang's HTTP server to its end; it turns ready only after every rank has proved our backend."""
    from sglang.srt.entrypoints import http_server

    from glm5_mla.sglang import verify

    def verify_ranks() -> None:
        try:
            verify.ranks(run_dir, server_args.tp_size)
        except Refusal as refusal:
            # In a thread of SGLang's: raising would end the thread only.
            os._exit(refusal.end())

    def warm_up(*args: Any) -> Any:
        verify_ranks()
        return http_server._execute_server_warmup(*args)

    http_server.launch_server(server_args, execute_warmup_func=warm_up, launch_callback=verify_ranks)


def cpu_binding(ranks: int, cores: Iterable[int]) -> str:
    """Deal `cores` out to `ranks` for SGLang's CPU engine: neighbours together, shared when there are too few.

    >>> cpu_binding(2, {0, 1, 2, 3})
    '0,1|2,3'
    >>> cpu_binding(3, {0, 1})
    '0|1|0'
    """
    ordered = sorted(cores)
    each = len(ordered) // ranks
    if each == 0:
        return "|".join(str(ordered[rank % len(ordered)]) for rank in range(ranks))
    return "|".join(",".join(map(str, ordered[rank * each : (rank + 1) * each])) for rank in range(ranks))


def _checked(function: Any, *args: Any) -> Any:
    """Call SGLang's `function`; what it raises about the arguments becomes a Refusal."""
    try:
        return function(*args)
    except Refusal:
        raise
    except Exception as error:
        logger.exception("SGLang does not take its arguments")
        text = f"{error}" or type(error).__name__
        raise Refusal("BadArgument", f"SGLang does not take its arguments: {text[:1000]}") from error


def _refuse_argument(_parser: argparse.ArgumentParser, message: str) -> NoReturn:
    raise Refusal("BadArgument", f"SGLang does not take its arguments: {message}")


def _check_model(path: str) -> None:
    """Refuse a local model that is not there, before SGLang takes its path for the name of a repository."""
    if path.startswith(("/", ".")) and not Path(path, "config.json").is_file():
        raise Refusal("ModelNotFound", f"There is no model at {path}: it has no readable config.json.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
