"""The images that the project builds: of what, on what, and what they are called."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.layout import version

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Recipe:
    """One image.

    `inputs` are the files and folders of the repository that decide what is in it, `base` is the recipe that it builds
    on, `archived` says whether nodes need it (the others are only built on), and `arguments` are the Dockerfile's.
    """

    name: str
    image: str
    dockerfile: str
    inputs: tuple[str, ...]
    base: str | None = None
    archived: bool = True
    arguments: Mapping[str, str] = field(default_factory=dict)


def setting(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return a setting as the Makefile exports it, else its default or what versions.mk says."""
    defaults = {"CACHE": "/var/cache/glm5", "REGISTRY": "glm5.local"}
    return environ.get(name) or defaults.get(name) or version(name)


def recipes(environ: Mapping[str, str] = os.environ) -> dict[str, Recipe]:
    """Return all recipes by name, bases before what stands on them."""
    registry, release = setting("REGISTRY", environ), setting("VERSION", environ)
    server = ("images/server", "backend/pyproject.toml", "backend/src")
    listed = (
        Recipe(
            name="debian",
            image=f"localhost/glm5-debian:{setting('DEBIAN_RELEASE', environ)}",
            dockerfile="images/debian/Dockerfile",
            inputs=("images/debian", "hack/images/debian.py"),
            archived=False,
        ),
        Recipe(
            name="operator",
            image=f"{registry}/glm5-operator:{release}",
            dockerfile="images/operator/Dockerfile",
            inputs=("images/operator", "constraints.txt", "operator/pyproject.toml", "operator/src"),
            base="debian",
        ),
        Recipe(
            name="sglang-cpu",
            image=f"localhost/glm5-sglang-cpu:{setting('SGLANG_VERSION', environ)}",
            dockerfile="images/server-cpu/Dockerfile",
            inputs=("images/server-cpu",),
            base="debian",
            archived=False,
        ),
        Recipe(
            name="server-cpu",
            image=f"{registry}/glm5-server:{release}-cpu",
            dockerfile="images/server/Dockerfile",
            inputs=server,
            base="sglang-cpu",
            arguments={"KERNEL": "none"},
        ),
        Recipe(
            name="sglang",
            image=f"localhost/glm5-sglang:{setting('SGLANG_VERSION', environ)}",
            dockerfile="images/sglang/Dockerfile",
            inputs=("images/sglang",),
            base="debian",
            archived=False,
            arguments={"SGLANG_VERSION": setting("SGLANG_VERSION", environ)},
        ),
        Recipe(
            name="server",
            image=f"{registry}/glm5-server:{release}",
            dockerfile="images/server/Dockerfile",
            inputs=server,
            base="sglang",
            archived=False,
        ),
    )
    return {recipe.name: recipe for recipe in listed}
