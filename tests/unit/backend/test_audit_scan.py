"""What the audit takes for a cast of the whole pool, and what not."""

import textwrap

import pytest

from glm5_mla.audit.scan import Kind, scan_source


def kinds(body: str) -> list[Kind]:
    source = f"def f(self, layer, q, idx, kv_cache, loc):\n{textwrap.indent(textwrap.dedent(body), '    ')}"
    return [site.kind for site in scan_source(source, "a.py")]


@pytest.mark.parametrize(
    "body",
    [
        "k = self.pool.get_key_buffer(layer.layer_id).to(q.dtype)",
        "k = self.pool.get_key_buffer(0)\nk = k.view(-1, 1, 576)\nreturn k[:, :, :512].to(torch.bfloat16)",
        "return kv_cache.to(self.data_type)",
        "return quantize_k_cache(kv_cache)",
        "return self.kv_buffer[layer - 1].to(q.dtype)",
        "if q:\n    for _ in q:\n        use(kv_cache.to(q.dtype))",
    ],
)
def test_converting_a_pool_buffer_or_a_slice_of_it_is_a_whole_pool_cast(body):
    assert kinds(body) == [Kind.WHOLE_POOL]


@pytest.mark.parametrize(
    "body",
    [
        "return self.pool.get_key_buffer(0)[idx].to(q.dtype)",
        "return self.pool.get_mla_kv_buffer(layer, loc, q.dtype)",
        "return dequantize_k_cache_paged(kv_cache, kv_indices)",
    ],
)
def test_converting_listed_rows_is_a_cast_of_rows(body):
    assert kinds(body) == [Kind.ROWS]


@pytest.mark.parametrize(
    "body",
    [
        "return self.pool.get_key_buffer(0).view(torch.uint8)",  # the same bytes under another name
        "return kv_cache.to('cuda')",  # moves, does not convert
        "return self.pool.get_mla_kv_buffer(layer, loc)",
        "return q.to(torch.bfloat16)",
        "kv_cache = q\nreturn kv_cache.to(q.dtype)",  # the name no longer holds the pool
    ],
)
def test_what_converts_nothing_of_the_pool_is_no_cast(body):
    assert kinds(body) == []


def test_a_place_is_reported_with_its_line_function_and_code():
    source = "class A:\n    def g(self):\n        x = 1\n        return self.pool.get_key_buffer(0).to(x.dtype)\n"
    (site,) = scan_source(source, "srt/a.py")
    assert (site.path, site.line, site.function) == ("srt/a.py", 4, "A.g")
    assert site.code == "self.pool.get_key_buffer(0).to(x.dtype)"


def test_the_dtypes_that_decide_over_the_pool_are_listed():
    assert kinds("self.data_type = q.dtype\nkv_cache_dtype = torch.float8_e4m3fn") == [Kind.DTYPE, Kind.DTYPE]
