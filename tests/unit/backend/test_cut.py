"""How the CUDA kernel cuts a batch for its thread blocks: the kernel's own code (cut.h), compiled for the CPU."""

import ctypes
import random
import re
import shutil
import subprocess
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from glm5_mla.kernels.native import build

SOURCES = build.SOURCES[0].parent
H200 = 132  # SMs


class Settings(NamedTuple):
    min_portion: int
    segment_cost: int
    align: int
    min_segment: int


def default_settings() -> Settings:
    text = (SOURCES / "mla_decode.cu").read_text()
    return Settings(*(int(re.search(rf"k\.a\.{name} = (\d+);", text)[1]) for name in Settings._fields))


DEFAULT = default_settings()


class Part(NamedTuple):
    """Rows beg..end - 1 of a request, taken by a thread block."""

    cta: int
    request: int
    beg: int
    end: int

    @property
    def rows(self):
        return self.end - self.beg


class Cutter:
    def __init__(self, library: Path):
        self._lib = ctypes.CDLL(str(library))

    def grid(self, sms, batch):
        return self._lib.cut_grid(sms, batch)

    def parts(self, lengths: Sequence[int], ctas: int, settings: Settings = DEFAULT):
        """Each request's parts in order, and the first and last block that would merge it."""
        batch, room = len(lengths), len(lengths) + ctas
        indptr = (ctypes.c_int32 * (batch + 1))(*accumulate(lengths, initial=1000))
        found, ends = (ctypes.c_int32 * (4 * room))(), (ctypes.c_int32 * (2 * batch))()
        count = self._lib.cut_parts(indptr, batch, ctas, *settings, found, room, ends)
        assert count >= 0
        parts = [Part(*found[4 * i : 4 * i + 4]) for i in range(count)]
        by_request = [[part for part in parts if part.request == b] for b in range(batch)]
        return by_request, [tuple(ends[2 * b : 2 * b + 2]) for b in range(batch)]

    def on_h200(self, lengths: Sequence[int]):
        return self.parts(lengths, self.grid(H200, len(lengths)))[0]


@pytest.fixture(scope="module")
def cutter(tmp_path_factory):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    library = tmp_path_factory.mktemp("cut") / "cut.so"
    flags = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{SOURCES}")
    subprocess.run([compiler, *flags, "-o", library, Path(__file__).with_name("cut_driver.cpp")], check=True)
    return Cutter(library)


def random_length(rng):
    short = rng.choice((0, 1, 31, 33, 63, 64, 65, 96, 128))
    return rng.choice((short, rng.randint(0, 300), rng.randint(0, 3000), rng.randint(0, 20000)))


def random_batches(count):
    rng = random.Random(1)
    settings = (
        *(DEFAULT,) * 4,
        *(Settings(64, 16, 32, 32), Settings(1, 1, 1, 1), Settings(128, 16, 128, 128)),
        *(Settings(64, 300, 64, 64), Settings(16, 7, 16, 32), Settings(64, 64, 64, 128)),
    )
    for _ in range(count):
        batch = rng.choice((1, 1, 2, 3, 5, 8, 13, 40, 64, 200))
        lengths = [random_length(rng) for _ in range(batch)]
        if rng.random() < 0.2:
            lengths = [rng.choice((64, 256, 1024, 4096, 8192, rng.randint(1, 9000)))] * batch
        yield lengths, rng.choice((1, 3, 7, 100, 128, H200, 188)), rng.choice(settings)


def test_every_row_belongs_to_one_block_and_those_of_a_request_follow_one_another(cutter):
    for lengths, ctas, settings in random_batches(3000):
        for length, parts in zip(lengths, cutter.parts(lengths, ctas, settings)[0], strict=True):
            assert (parts[0].beg, parts[-1].end) == (0, length), (lengths, ctas, settings)
            assert all(a.end == b.beg and b.cta == a.cta + 1 for a, b in pairwise(parts)), (lengths, ctas, settings)


def test_no_block_within_a_request_is_without_rows_of_it(cutter):
    for lengths, ctas, settings in random_batches(3000):
        for parts in cutter.parts(lengths, ctas, settings)[0]:
            assert len(parts) == 1 or all(part.rows > 0 for part in parts), (lengths, ctas, settings)


def test_a_shared_request_is_merged_by_the_blocks_that_have_rows_of_it(cutter):
    for lengths, ctas, settings in random_batches(3000):
        for parts, ends in zip(*cutter.parts(lengths, ctas, settings), strict=True):
            if len(parts) > 1:
                assert ends == (parts[0].cta, parts[-1].cta), (lengths, ctas, settings)


def test_cuts_inside_a_request_fall_on_its_tiles_and_leave_enough_rows_on_either_side(cutter):
    for lengths, ctas, settings in random_batches(3000):
        for parts in cutter.parts(lengths, ctas, settings)[0]:
            assert all(part.beg % settings.align == 0 for part in parts)
            if len(parts) > 1:
                assert parts[0].rows >= settings.min_segment
                assert parts[-1].rows >= settings.min_segment - settings.align // 2


@pytest.mark.parametrize(
    ("batch", "length", "rows"),
    [(8, 8192, 512), (16, 8192, 1024), (32, 8192, 2048), (64, 4096, 2048), (64, 2048, 1024)],
)
def test_equal_requests_are_cut_into_equal_parts(cutter, batch, length, rows):
    assert {part.rows for parts in cutter.on_h200([length] * batch) for part in parts} == {rows}


@pytest.mark.parametrize("length", [1024, 2048, 8192])
def test_a_short_request_alone_is_cut_into_single_tiles(cutter, length):
    assert [part.rows for part in cutter.on_h200([length])[0]] == [64] * (length // 64)


def test_no_block_has_more_than_one_tile_above_the_mean_of_a_long_request(cutter):
    assert max(part.rows for part in cutter.on_h200([131_072])[0]) <= 1024


def test_a_block_with_many_short_requests_gets_fewer_rows(cutter):
    parts = [part for parts in cutter.on_h200([114_944, *[256] * 63]) for part in parts]
    rows = {cta: [part.rows for part in parts if part.cta == cta] for cta in {part.cta for part in parts}}
    alone = max(sum(each) for each in rows.values() if len(each) == 1)
    assert max(sum(each) for each in rows.values() if len(each) > 3) <= alone - 2 * DEFAULT.segment_cost


@pytest.mark.parametrize(("batch", "ctas"), [(1, 132), (8, 128), (32, 128), (64, 128), (100, 132), (200, 132)])
def test_the_grid_leaves_out_a_few_sms_where_requests_then_have_as_many_blocks_each(cutter, batch, ctas):
    assert cutter.grid(H200, batch) == ctas
