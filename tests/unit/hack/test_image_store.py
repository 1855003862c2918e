"""The node's images between two lives of a cluster."""

import pytest

from cluster import image_store
from cluster.layout import layout


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "cache").mkdir()
    return {"CACHE": str(tmp_path / "cache"), "STATE": str(tmp_path / "state")}


def make(settings, **more):
    cluster = layout("full", settings | more)
    cluster.state.mkdir(exist_ok=True)
    return cluster


def with_image(cluster, name="image"):
    cluster.images.mkdir()
    (cluster.images / name).touch()
    cluster.came_up.touch()
    return cluster


def test_the_next_cluster_starts_with_the_images_of_the_last(settings):
    image_store.keep(with_image(make(settings)))
    following = make(settings)
    image_store.take(following)
    assert (following.images / "image").exists()
    assert not following.kept_images.exists()


def test_the_first_cluster_of_all_starts_without_images(settings):
    cluster = make(settings)
    image_store.take(cluster)
    assert not cluster.images.exists()


def test_what_a_cluster_that_never_came_up_leaves_is_not_kept(settings):
    cluster = with_image(make(settings))
    cluster.came_up.unlink()
    image_store.keep(cluster)
    assert not cluster.kept_images.exists()


def test_of_two_clusters_the_first_to_go_leaves_its_images(settings):
    one, two = (with_image(make(settings, STATE=settings["STATE"] + name), name) for name in ("one", "two"))
    image_store.keep(one)
    image_store.keep(two)
    assert [path.name for path in one.kept_images.iterdir()] == ["one"]


def test_a_cluster_that_keeps_none_neither_takes_nor_leaves(settings):
    image_store.keep(with_image(make(settings)))
    other = make(settings, KEEP_IMAGES="0", STATE=settings["STATE"] + "other")
    image_store.take(other)
    assert not other.images.exists()
    other.kept_images.rename(other.images)
    other.came_up.touch()
    image_store.keep(other)
    assert not other.kept_images.exists()
