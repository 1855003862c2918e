"""What of a repository counts as weights."""

from types import SimpleNamespace

from glm5_mla.download import weight_bytes


def file(name, size):
    return SimpleNamespace(rfilename=name, size=size)


def test_the_same_weights_in_another_form_are_not_counted_twice():
    files = [
        file("config.json", 5),
        file("model-00001.safetensors", 1000),
        file("model-00002.safetensors", 500),
        file("original/model.safetensors", 1500),
        file("pytorch_model.bin", 1500),
    ]
    assert weight_bytes(files) == 1500


def test_of_another_format_the_weights_are_not_known():
    assert weight_bytes([file("model.gguf", 1000)]) == 0
