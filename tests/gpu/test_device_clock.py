"""The stamps of the step timing and the row cast on a card: against CUDA events and against torch."""

import pytest

torch = pytest.importorskip("torch")

from glm5_mla.kernels import ROW  # noqa: E402
from glm5_mla.kernels.rowcast import RowCast  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card")]

LAYERS = 78


@pytest.fixture(scope="module")
def clock():
    from glm5_mla.timing.device_clock import DeviceClock

    clock = DeviceClock(range(LAYERS))
    list(clock.readings())
    return clock


@pytest.fixture(scope="module")
def work():
    """Something that takes about 30 us."""
    source = torch.randn(1 << 24, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    torch.cuda.synchronize()
    return lambda: target.copy_(source)


def capture(body):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


def replay(graph, times):
    """Replay and return the milliseconds of one, by events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / times


def test_a_replayed_forward_is_timed_as_by_events(clock, work):
    def forward():
        clock.start()
        for layer in range(LAYERS):
            watched = clock.watches(layer)
            if watched:
                clock.mark_begin()
            work()
            if watched:
                clock.mark_cast()
            work()
            if watched:
                clock.mark_attention()
        clock.end()

    before = clock.executions
    graph = capture(forward)
    assert clock.executions == before, "a capture is no execution"
    plain = capture(lambda: [work() for _ in range(2 * LAYERS)])
    replay(plain, 3)
    wanted = replay(plain, 20) * 1e6
    replay(graph, 20)
    for _ in range(20):
        clock.replayed()
    readings = list(clock.readings())
    assert [reading.number for reading in readings] == list(range(before, before + 20))
    step, cast, attention = (
        sum(values) / len(readings)
        for values in zip(*((r.end - r.start, r.cast, r.attention) for r in readings), strict=True)
    )
    assert step == pytest.approx(wanted, rel=0.03)
    assert cast == pytest.approx(wanted / 2, rel=0.06)
    assert attention == pytest.approx(wanted / 2, rel=0.06)


def test_readings_come_in_without_waiting_for_the_device(clock, work):
    clock.start()
    for _ in range(300):
        work()
    clock.end()
    early = list(clock.readings())
    torch.cuda.synchronize()
    assert early == []
    assert len(list(clock.readings())) == 1


def test_a_long_absence_of_the_reader_loses_old_readings_and_no_new_ones(clock):
    from glm5_mla.timing.device_clock import RING

    for _ in range(RING + 50):
        clock.start()
        clock.end()
    torch.cuda.synchronize()
    assert list(clock.readings())[-1].number == clock.executions - 1


@pytest.mark.parametrize("listed", [1, 7, 8192, 100_000])
def test_the_row_cast_converts_the_listed_rows_and_only_them(listed):
    rows = 120_000
    pool = torch.randn((rows, 1, ROW), device="cuda").to(torch.float8_e4m3fn)
    indices = torch.randperm(rows, device="cuda").int()
    indptr = torch.tensor([0, listed], dtype=torch.int32, device="cuda")
    cast = RowCast(rows, torch.device("cuda"))(pool, indptr, indices)
    inside, outside = indices[:listed].long(), indices[listed:].long()
    assert torch.equal(cast[inside], pool[inside].to(torch.bfloat16))
    assert not cast[outside].any()


def test_a_captured_row_cast_follows_the_lists_of_the_replay():
    pool = torch.ones((64, 1, ROW), device="cuda").to(torch.float8_e4m3fn)
    indices = torch.arange(64, dtype=torch.int32, device="cuda")
    indptr = torch.tensor([0, 2], dtype=torch.int32, device="cuda")
    cast = RowCast(64, torch.device("cuda"))
    cast(pool, indptr, indices)
    graph = capture(lambda: cast(pool, indptr, indices))
    indptr.fill_(3)
    indices.add_(10)
    graph.replay()
    torch.cuda.synchronize()
    converted = cast(pool, torch.zeros(2, dtype=torch.int32, device="cuda"), indices)[:, 0, 0].nonzero().flatten()
    assert converted.tolist() == [0, 1, 10, 11, 12]
