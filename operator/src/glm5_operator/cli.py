"""`glm5-operator`: runs the operator, or prints the CustomResourceDefinition."""

import argparse
import asyncio
import os
import sys

from .settings import Settings


def main() -> int:
    """Entry point of the program. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="glm5-operator", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the operator; settings come from GLM5_OPERATOR_* variables")
    run.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    commands.add_parser("crd", help="print the CustomResourceDefinition as YAML")
    arguments = parser.parse_args()
    if arguments.command == "crd":
        from .api.render import crd_yaml

        sys.stdout.write(crd_yaml())
        return 0
    try:
        settings = Settings.from_environment(os.environ)
    except ValueError as error:
        print(f"glm5-operator: {error}", file=sys.stderr)
        return 2
    from .operator import run as run_operator
    from .operator import set_up_logging

    set_up_logging(arguments.log_level)
    return asyncio.run(run_operator(settings))
