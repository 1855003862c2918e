"""The per-rank file: what a reader may rely on while ranks write, restart and die."""

import json
import os
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest
from rank_steps import INFO, MS, Clock, S, step

from glm5_mla.timing import rankfile
from glm5_mla.timing.rankfile import (
    BUCKET_BOUNDS_NS,
    HEADER,
    INFO_AT,
    INFO_HEAD,
    TOTALS,
    TOTALS_AT,
    BackendInfo,
    RankFileError,
    RankWriter,
    rank_path,
    wipe,
)
from glm5_mla.timing.rankreader import RankReader


@pytest.fixture
def writer(start_rank):
    return start_rank(0, 8, capacity=256)


@pytest.fixture
def reader(tmp_path, clock):
    return RankReader(rank_path(tmp_path, 0), clock=clock)


def test_a_new_rank_is_alive_with_everything_at_zero(writer, reader):
    snapshot = reader.read()
    assert (snapshot.rank, snapshot.world_size, snapshot.pid) == (0, 8, os.getpid())
    assert snapshot.alive
    assert snapshot.info == INFO
    assert snapshot.decode_tokens == snapshot.graph_steps == snapshot.eager_steps == 0
    assert snapshot.last_step_end_s is None
    assert snapshot.window.steps == 0
    assert snapshot.window.step_s is None


def test_steps_add_up(writer, reader):
    writer.record(step(step_ms=8, cast_ms=5))
    writer.record(step(step_ms=10, cast_ms=0, graph=False))
    writer.add_tokens(3)
    writer.set_running(2)
    snapshot = reader.read()
    assert snapshot.histograms["step"].sum_s == pytest.approx(0.018)
    assert snapshot.histograms["step"].count == 2
    assert snapshot.histograms["cast"].sum_s == pytest.approx(0.005)
    assert snapshot.cast_bytes == 2304
    assert (snapshot.graph_steps, snapshot.eager_steps) == (1, 1)
    assert snapshot.decode_tokens == 3
    assert snapshot.running_requests == 2
    assert snapshot.last_step_end_s == 1_790_000_000


@pytest.mark.parametrize("index", range(len(BUCKET_BOUNDS_NS)))
def test_a_bucket_holds_its_upper_bound_and_not_more(writer, reader, index):
    bound = BUCKET_BOUNDS_NS[index]
    writer.record(step()._replace(step_ns=bound))
    writer.record(step()._replace(step_ns=bound + 1))
    buckets = reader.read().histograms["step"].buckets
    assert (buckets[index], buckets[index + 1]) == (1, 1)


def test_an_unknown_interval_is_not_an_interval_of_zero(writer, reader):
    writer.record(step(interval_ms=0))
    writer.record(step(interval_ms=10))
    snapshot = reader.read()
    assert snapshot.histograms["interval"].count == 1
    assert snapshot.window.interval_s == pytest.approx(0.010)


def test_a_negative_number_is_refused_and_counts_nothing(writer, reader):
    with pytest.raises(ValueError, match="negative"):
        writer.record(step()._replace(cast_ns=-1))
    assert reader.read().graph_steps == 0


def test_the_window_holds_the_last_seconds_only(writer, reader, clock):
    writer.record(step(step_ms=100))
    writer.add_tokens(50)
    clock.now += 11 * S
    for _ in range(4):
        writer.record(step(step_ms=8, batch=3))
        writer.add_tokens(3)
        clock.now += S
    window = reader.read(window_s=10).window
    assert (window.steps, window.tokens, window.seconds) == (4, 12, 10.0)
    assert window.step_s == pytest.approx(0.008)
    assert (window.batch, window.kv_tokens) == (3.0, 300.0)


def test_an_idle_rank_has_an_empty_window_however_much_it_did_before(writer, reader, clock):
    for _ in range(20):
        writer.record(step())
        writer.add_tokens(2)
    clock.now += 60 * S
    window = reader.read().window
    assert (window.steps, window.tokens) == (0, 0)
    assert window.step_s is window.cast_s is window.batch is None


@pytest.mark.parametrize("jump_s", [-86_400, 86_400])
def test_a_jump_of_the_wall_clock_moves_no_window(writer, reader, clock, jump_s):
    for second in range(5):
        wall = 1_790_000_000 + second + (jump_s if second > 2 else 0)
        writer.record(step(step_ms=8)._replace(end_ns=wall * S))
        writer.add_tokens(2)
        clock.now += S
    window = reader.read(window_s=10).window
    assert (window.steps, window.tokens, window.seconds) == (5, 10, 10.0)
    assert window.step_s == pytest.approx(0.008)


def test_a_ring_shorter_than_the_window_says_how_far_it_reaches(writer, reader, clock):
    for _ in range(1000):
        writer.record(step(step_ms=8))
        writer.add_tokens(2)
        clock.now += 10 * MS
    window = reader.read(window_s=10).window
    assert window.seconds == pytest.approx(2.4, abs=0.1)  # 256 records, 10 ms apart
    assert window.steps == pytest.approx(window.seconds / 0.010, abs=1)
    assert window.tokens == pytest.approx(2 * window.steps, abs=2)
    assert window.step_s == pytest.approx(0.008)


def test_a_rank_whose_heart_stopped_is_dead(tmp_path, clock, writer, reader):
    clock.now += 9 * S
    assert reader.read().alive
    clock.now += 2 * S
    assert not reader.read().alive


def test_a_heartbeat_from_before_a_reboot_is_not_alive(writer, reader, clock):
    clock.now -= 500 * S
    assert not reader.read().alive


def test_a_closed_rank_is_dead_at_once_and_can_still_be_read(writer, reader):
    writer.record(step())
    writer.close()
    snapshot = reader.read()
    assert not snapshot.alive
    assert snapshot.graph_steps == 1


def test_a_living_rank_renews_its_heartbeat_without_doing_anything_else(tmp_path):
    started = Clock()
    writer = RankWriter(tmp_path, 0, 1, INFO, clock=started)
    started.now += 60 * S
    ticked = threading.Event()
    ticked.wait(1.5)
    assert RankReader(writer.path, clock=started).read().alive
    writer.close()


def test_a_new_life_shows_nothing_of_the_old_one(tmp_path, clock, writer, reader):
    writer.record(step())
    writer.add_tokens(7)
    again = RankWriter(tmp_path, 0, 8, INFO, clock=clock)
    snapshot = reader.read()
    assert snapshot.decode_tokens == snapshot.graph_steps == snapshot.window.steps == 0
    writer.add_tokens(1)  # the old process, not quite gone, writes into a file that has no name any more
    assert reader.read().decode_tokens == 0
    again.close()


def test_backend_information_can_be_replaced_at_any_time(writer, reader):
    for kernel in ("triton", "cuda", "reference"):
        info = BackendInfo("Never", kernel, "0.1.0")
        writer.set_info(info)
        assert reader.read().info == info


def test_a_slot_torn_by_a_killed_writer_falls_back_to_the_one_before(writer, reader, tmp_path):
    writer.add_tokens(5)
    before = reader.read().decode_tokens
    writer.add_tokens(1)
    size = 8 * len(TOTALS)
    data = bytearray(rank_path(tmp_path, 0).read_bytes())
    slots = [int.from_bytes(data[TOTALS_AT + i * size : TOTALS_AT + i * size + 8], "little") for i in range(2)]
    newest = TOTALS_AT + slots.index(max(slots)) * size
    data[newest + 100] ^= 0xFF
    rank_path(tmp_path, 0).write_bytes(data)
    assert reader.read().decode_tokens == before


def test_wiping_removes_every_rank_file_and_nothing_else(tmp_path, writer):
    (tmp_path / ".rank-3.123").touch()
    (tmp_path / "other").touch()
    wipe(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not_a_rank_file"),
        (b"hello, this is not it", "not_a_rank_file"),
        (b"GLM5RANK", "damaged"),
        (os.urandom(100_000), "not_a_rank_file"),
    ],
)
def test_what_is_no_rank_file_is_named_so(tmp_path, content, reason):
    (tmp_path / "rank-0").write_bytes(content)
    with pytest.raises(RankFileError) as error:
        RankReader(tmp_path / "rank-0").read()
    assert error.value.reason == reason


def test_a_directory_in_place_of_the_file_is_unreadable(tmp_path):
    (tmp_path / "rank-0").mkdir()
    with pytest.raises(RankFileError) as error:
        RankReader(tmp_path / "rank-0").read()
    assert error.value.reason == "unreadable"


def test_a_file_of_another_version_says_what_to_do(writer, reader, tmp_path):
    data = bytearray(rank_path(tmp_path, 0).read_bytes())
    data[8] = 99
    rank_path(tmp_path, 0).write_bytes(data)
    with pytest.raises(RankFileError, match=r"version 99.*same image") as error:
        reader.read()
    assert error.value.reason == "version"


def test_a_file_with_other_buckets_is_of_another_version_too(start_rank, reader, monkeypatch):
    monkeypatch.setattr(rankfile, "BUCKET_BOUNDS_NS", rankfile.BUCKET_BOUNDS_NS[:-2])
    start_rank()
    with pytest.raises(RankFileError, match=r"27 buckets.*same image") as error:
        reader.read()
    assert error.value.reason == "version"


@pytest.mark.parametrize("kept", [HEADER.size, 200, TOTALS_AT + 50, TOTALS_AT + 16 * len(TOTALS) + 60])
def test_a_file_cut_short_is_damaged_and_not_a_crash(writer, reader, tmp_path, kept):
    for _ in range(300):
        writer.record(step())
    os.truncate(rank_path(tmp_path, 0), kept)
    with pytest.raises(RankFileError) as error:
        reader.read()
    assert error.value.reason == "damaged"
    # The real writer's mapping now ends early; put the length back before it is touched again.
    os.truncate(rank_path(tmp_path, 0), 1 << 20)


@pytest.mark.parametrize(
    "body",
    [b"no JSON", b"[1]", b"null", b"{}", b'{"kv_cast": "Never"}', b"\xff", b"[" * 2000]
    + [json.dumps({**vars(INFO), changed: 7}).encode() for changed in ("kernel", "verified")],
)
def test_garbage_with_a_right_checksum_is_damaged_and_not_a_crash(writer, reader, tmp_path, body):
    slot = INFO_HEAD.pack(1 << 40, len(body), zlib.crc32(body, 1 << 40)) + body
    with rank_path(tmp_path, 0).open("r+b") as file:
        file.seek(INFO_AT)
        file.write(slot)
    with pytest.raises(RankFileError, match="rank-0 is cut short or damaged") as error:
        reader.read()
    assert error.value.reason == "damaged"


def test_a_missing_run_directory_that_cannot_be_made_names_the_setting(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RankFileError, match="GLM5_RUN_DIR"):
        RankWriter(tmp_path / "file" / "run", 0, 1, INFO)


WRITE_FAST = """
import sys, time
from glm5_mla.timing.rankfile import BackendInfo, RankWriter, StepRecord
writer = RankWriter(sys.argv[1], 0, 1, BackendInfo("Never", "reference", "0.1.0"))
print("ready", flush=True)
end = time.monotonic() + 30
while time.monotonic() < end:
    # Every number is tied to the others, so that a mixture of two writes shows.
    writer.record(StepRecord(1, 1000, 1000, 1000, 1000, 1000, 1, 1, True))
"""


def test_a_reader_never_sees_half_a_write_and_survives_the_writers_violent_end(tmp_path):
    writing = subprocess.Popen([sys.executable, "-c", WRITE_FAST, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert writing.stdout is not None
        assert writing.stdout.readline() == "ready\n"
        reader, last = RankReader(Path(tmp_path) / "rank-0"), 0
        for _ in range(3000):
            snapshot = reader.read(window_s=0.02)
            steps = snapshot.graph_steps
            assert steps >= last
            assert snapshot.cast_bytes == 1000 * steps
            assert all(snapshot.histograms[name].count == steps for name in ("step", "interval", "cast", "attention"))
            if snapshot.window.steps:
                assert snapshot.window.step_s == pytest.approx(1e-6)
                assert snapshot.window.batch == 1.0
            last = steps
        assert last > 1000
    finally:
        writing.kill()
        writing.wait()
    assert reader.read().graph_steps >= last
