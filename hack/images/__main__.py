"""Command line: `PYTHONPATH=hack python3 -m images [NAME ...]` builds images and says where their archives are."""

import argparse
import sys

from cluster.progress import Failure, warn

from .build import ensure
from .recipes import recipes


def main(arguments: list[str]) -> int:
    """Build what is asked for; 0 when all of it is there, 1 with a sentence on standard error when not."""
    known = recipes()
    default = [name for name, recipe in known.items() if recipe.archived]
    parser = argparse.ArgumentParser(prog="images", description="Build the project's images with buildah.")
    parser.add_argument("name", nargs="*", help=f"{', '.join(known)} (default: {' '.join(default)})")
    names = parser.parse_args(arguments).name or default
    try:
        for name, archive in ensure(names).items():
            print(f"{known[name].image}  {archive}  {archive.stat().st_size / 1e6:.0f} MB")
    except (Failure, OSError) as failure:
        warn(str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
