"""How the attention of a backend that is not ours is timed."""

from types import SimpleNamespace

import pytest

from glm5_mla.sglang import hooks


class Clock:
    """Watches layer 3 alone and writes down its marks."""

    def __init__(self):
        self.seen = []

    def watches(self, layer):
        return layer == 3

    def mark_begin(self):
        self.seen.append("begin")

    def mark_attention(self):
        self.seen.append("attention")


@pytest.mark.parametrize(("layer", "marks"), [(3, ["begin", "forward", "attention"]), (4, ["forward"])])
def test_sglangs_sparse_decode_is_timed_as_a_whole_in_the_layers_that_are_watched(layer, marks):
    clock = Clock()

    def forward_decode(q, k, v, layer, forward_batch, save_kv_cache=True, topk_indices=None):
        clock.seen.append("forward")
        return q, forward_batch, topk_indices

    sparse = SimpleNamespace(forward_decode=forward_decode)
    hooks._watch(sparse, clock)
    out = sparse.forward_decode("q", "k", "v", SimpleNamespace(layer_id=layer), "batch", topk_indices="rows")
    assert out == ("q", "batch", "rows")
    assert clock.seen == marks
