"""Which images are built, and when one is built anew."""

import os
import subprocess
from pathlib import Path

import pytest

from cluster.progress import Failure
from images import build, recipes
from images.recipes import Recipe


def recipe(**changes):
    values = {"name": "one", "image": "r/one:1", "dockerfile": "one/Dockerfile", "inputs": ("one", "pins.txt")}
    return Recipe(**{**values, **changes})


@pytest.fixture
def repository(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    (tmp_path / "one/Dockerfile").write_text("FROM scratch")
    (tmp_path / "pins.txt").write_text("a==1")
    monkeypatch.setattr(build, "REPOSITORY", tmp_path)
    return tmp_path


def test_the_same_inputs_give_the_same_key(repository):
    assert build.key(recipe(), "base") == build.key(recipe(), "base")


@pytest.mark.parametrize("name", ["pins.txt", "one/Dockerfile", "one/new"])
def test_a_changed_or_new_input_gives_another_key(repository, name):
    before = build.key(recipe(), "base")
    (repository / name).write_text("changed")
    assert build.key(recipe(), "base") != before


def test_a_moved_line_between_two_inputs_gives_another_key(repository):
    (repository / "one/a").write_text("x")
    (repository / "one/b").write_text("")
    before = build.key(recipe(), "base")
    (repository / "one/a").write_text("")
    (repository / "one/b").write_text("x")
    assert build.key(recipe(), "base") != before


def test_another_base_or_name_gives_another_key(repository):
    keys = {build.key(recipe(), "base"), build.key(recipe(), "other"), build.key(recipe(image="r/one:2"), "base")}
    assert len(keys) == 3


def test_what_python_leaves_behind_does_not_count(repository):
    before = build.key(recipe(), "base")
    (repository / "one/__pycache__").mkdir()
    (repository / "one/__pycache__/x.pyc").write_bytes(b"x")
    assert build.key(recipe(), "base") == before


def test_an_image_s_bases_are_built_with_it():
    known = {name: recipe(name=name, base=base) for name, base in (("a", None), ("b", "a"), ("c", "b"), ("d", None))}
    assert build.with_bases(["c"], known) == {"a", "b", "c"}


def test_every_recipe_has_its_files_and_its_base_before_it():
    seen = set()
    for name, made in recipes.recipes({}).items():
        assert (recipes.REPOSITORY / made.dockerfile).is_file(), name
        assert build.files(made.inputs), name
        assert made.base is None or made.base in seen, name
        seen.add(name)


def test_names_are_the_ones_that_the_chart_and_the_demo_use():
    made = recipes.recipes({"REGISTRY": "registry.example:5000", "VERSION": "9.8.7"})
    assert made["operator"].image == "registry.example:5000/glm5-operator:9.8.7"
    assert made["server-cpu"].image == "registry.example:5000/glm5-server:9.8.7-cpu"


def test_an_unknown_image_is_refused_with_the_known_ones(monkeypatch):
    monkeypatch.setattr(build.os, "geteuid", lambda: 0)
    with pytest.raises(Failure, match=r"nonsense.*server-cpu"):
        build.ensure(["nonsense"])


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr(build.os, "geteuid", lambda: 1000)
    with pytest.raises(Failure, match="root"):
        build.ensure(["operator"])


def test_what_a_killed_build_left_is_gone_when_the_next_one_begins(tmp_path):
    store = build.Store(tmp_path)
    left = store.archives / f"{build.SCRATCH}abc"
    (left / "rootfs").mkdir(parents=True)
    archive = store.archives / "operator-0123456789abcdef.tar"
    archive.touch()
    with store.locked():
        assert not left.exists()
    assert archive.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_what_a_killed_build_left_mounted_is_unmounted_and_not_deleted_through(tmp_path):
    store = build.Store(tmp_path)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").touch()
    mounted = store.archives / f"{build.SCRATCH}abc/rootfs/proc"
    mounted.mkdir(parents=True)
    subprocess.run(["mount", "--bind", tmp_path / "outside", mounted], check=True)
    with store.locked():
        assert not mounted.exists()
    assert (tmp_path / "outside/kept").exists()
    assert str(mounted) not in Path("/proc/mounts").read_text()
