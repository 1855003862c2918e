"""What the controller keeps of an answer to its own write, and what it tells when a request fails."""

import asyncio
from types import SimpleNamespace

import pytest

from glm5_operator.api.names import KIND
from glm5_operator.cluster import ApiError
from glm5_operator.controller import Controller
from glm5_operator.metrics import Metrics
from glm5_operator.operator import utc_now
from glm5_operator.reconcile.difference import spec_hash
from glm5_operator.reconcile.plan import Applied, wanted_children
from glm5_operator.settings import Settings

KEY = ("models", "glm5")


def object_of(uid, version):
    metadata = {"namespace": "models", "name": "glm5", "uid": uid, "resourceVersion": str(version), "generation": 1}
    return {"metadata": metadata, "spec": {}}


@pytest.mark.parametrize(
    ("meanwhile", "left"),
    [
        ([], "first"),
        ([("DELETED", object_of("first", 6))], None),
        ([("DELETED", object_of("first", 6)), ("ADDED", object_of("second", 7))], "second"),
    ],
    ids=["nothing", "deletion", "another of the name"],
)
def test_an_answer_that_comes_after_word_of_the_deletion_brings_no_object_back(meanwhile, left):
    async def run():
        async def apply_status(*_):
            for event, body in meanwhile:
                controller.seen(KIND, event, body)
            return object_of("first", 5)

        controller = Controller(SimpleNamespace(apply_status=apply_status), Settings(), Metrics(), utc_now)
        before = object_of("first", 4)
        controller.store.put(KIND, before)
        await controller._write_status(KEY, before, {"state": "Ready", "conditions": []})
        found = controller.store.get(KEY)
        assert (found and found["metadata"]["uid"]) == left

    asyncio.run(run())


def test_a_child_that_was_put_back_is_told_even_when_a_later_question_fails():
    told = []

    async def answer(result):
        return result

    async def get(kind, *_):
        if kind == "Service":
            raise ApiError(0, "Unreachable", "the API server does not answer", "GET")

    async def tell(_, kind, reason, message):
        told.append((kind, reason, message))

    async def apply(manifest):
        return {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": "9"}}

    async def run():
        cluster = SimpleNamespace(get=get, tell=tell, apply=apply, has_api=lambda *_: answer(False))
        controller = Controller(cluster, Settings(), Metrics(), utc_now)
        body = object_of("first", 4)
        body["spec"] = {"model": {"source": {"persistentVolumeClaim": {"claimName": "weights"}}}}
        body["status"] = {"state": "Ready"}
        controller.store.put(KIND, body)
        controller._applied[KEY] = {"Deployment": Applied(_hash_wanted(controller, body), "")}
        assert await controller.handle(KEY) is False

    asyncio.run(run())
    assert told == [("Normal", "Restored", "changed or deleted by somebody else, and put back: Deployment")]


def _hash_wanted(controller, body):
    return spec_hash(wanted_children(controller.context(body), pod_monitor_api=False)["Deployment"])
