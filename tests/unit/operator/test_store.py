"""Copies of what the watches told, and of what they did not tell."""

from builders import ready_pod

from glm5_operator.api.names import KIND
from glm5_operator.store import Store

KEY = ("models", "glm5")


def object_at(version):
    return {"metadata": {"name": "glm5", "namespace": "models", "uid": "uid-1", "resourceVersion": str(version)}}


def pod_at(name, version):
    pod = ready_pod(name)
    return {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(version)}}


def store_of(*pods):
    store = Store()
    store.put(KIND, object_at(5))
    for pod in pods:
        store.put("Pod", pod)
    return store


def names(store):
    return [pod["metadata"]["name"] for pod in store.children(KEY, "Pod")]


def test_a_child_that_a_listing_does_not_name_is_dropped():
    store = store_of(pod_at("glm5-a", 6), pod_at("glm5-b", 7))
    store.drop_unlisted("Pod", None, {"glm5-b"}, 10)
    assert names(store) == ["glm5-b"]


def test_an_answer_that_comes_after_a_listing_without_the_child_brings_no_child_back():
    store = store_of(pod_at("glm5-a", 6))
    store.drop_unlisted("Pod", None, set(), 10)
    assert store.put("Pod", pod_at("glm5-a", 8)) is None
    assert names(store) == []


def test_a_child_newer_than_the_listing_stays():
    store = store_of(pod_at("glm5-a", 11))
    store.drop_unlisted("Pod", None, set(), 10)
    assert names(store) == ["glm5-a"]


def test_a_listing_of_another_kind_or_namespace_says_nothing():
    store = store_of(pod_at("glm5-a", 6))
    store.drop_unlisted("ReplicaSet", None, set(), 10)
    store.drop_unlisted("Pod", "others", set(), 10)
    assert names(store) == ["glm5-a"]


def test_an_object_whose_deletion_was_missed_is_dropped():
    store = store_of()
    store.drop_unlisted(KIND, "models", {"uid-1"}, 10)
    assert store.get(KEY) is not None
    store.drop_unlisted(KIND, "models", set(), 10)
    assert store.get(KEY) is None


def test_a_copy_that_a_write_of_our_own_has_brought_calls_for_no_pass_again():
    store = store_of(pod_at("glm5-a", 6))
    assert store.put("Pod", pod_at("glm5-a", 6)) is None
    assert store.put("Pod", pod_at("glm5-a", 7)) == KEY
    assert store.put(KIND, object_at(5)) is None
    assert store.put(KIND, object_at(8)) == KEY


def test_a_child_made_anew_with_the_same_name_is_another_one():
    store = store_of(pod_at("glm5-a", 6))
    anew = pod_at("glm5-a", 7)
    anew["metadata"]["uid"] = "another"
    assert store.put("Pod", anew) == KEY


def test_a_late_answer_about_an_object_does_not_displace_the_one_made_anew():
    store = store_of(pod_at("glm5-a", 5))
    anew = pod_at("glm5-a", 9)
    anew["metadata"]["uid"] = "another"
    store.put("Pod", anew)
    assert store.put("Pod", pod_at("glm5-a", 7)) is None
    store.remove("Pod", pod_at("glm5-a", 8))
    assert store.child(KEY, "Pod", "glm5-a")["metadata"]["uid"] == "another"


def test_an_answer_that_comes_after_word_of_the_childs_deletion_brings_no_child_back():
    store = store_of(pod_at("glm5-a", 6))
    store.remove("Pod", pod_at("glm5-a", 8))
    assert store.put("Pod", pod_at("glm5-a", 7)) is None
    assert names(store) == []


def test_a_child_that_lost_its_label_and_got_it_back_is_known_again():
    store = store_of(pod_at("glm5-a", 6))
    store.remove("Pod", pod_at("glm5-a", 8))
    assert store.put("Pod", pod_at("glm5-a", 9)) == KEY
    assert names(store) == ["glm5-a"]
