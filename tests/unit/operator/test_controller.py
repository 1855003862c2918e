"""What the controller keeps of an answer to its own write."""

import asyncio
from types import SimpleNamespace

import pytest

from glm5_operator.api.names import KIND
from glm5_operator.controller import Controller
from glm5_operator.metrics import Metrics
from glm5_operator.operator import utc_now
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
