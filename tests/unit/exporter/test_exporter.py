"""What Prometheus and the operator get from a pod, whatever its ranks do."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rank_steps import S, step

from glm5_mla.exporter import supervisor
from glm5_mla.exporter.collector import RankCollector
from glm5_mla.exporter.decode import decode_figures
from glm5_mla.exporter.metrics import METRICS, Metric
from glm5_mla.exporter.ranks import RunDirectory
from glm5_mla.exporter.server import ExporterServer, SettingError, Settings
from glm5_mla.timing.rankfile import BackendInfo, rank_path


class Scraper:
    """Scrapes as Prometheus does and looks up samples by name and labels."""

    def __init__(self, run_directory: RunDirectory) -> None:
        self.collector = RankCollector(run_directory, "glm5")

    def __call__(self) -> "Scraper":
        self.text = self.collector.collect().decode()
        families = list(text_string_to_metric_families(self.text))
        self.names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
        self.samples = [sample for family in families for sample in family.samples]
        return self

    def all(self, name: str) -> list:
        return [sample for sample in self.samples if sample.name == name]

    def value(self, name: str, **labels: str) -> float | None:
        wanted = {"deployment": "glm5", **labels}
        found = [sample.value for sample in self.all(name) if wanted.items() <= sample.labels.items()]
        assert len(found) < 2, f"{name}{labels} is not one series"
        return found[0] if found else None


@pytest.fixture
def run_directory(tmp_path, clock):
    return RunDirectory(tmp_path, 8, clock=clock)


@pytest.fixture
def scrape(run_directory):
    return Scraper(run_directory)


def figures(run_directory) -> dict:
    return json.loads(json.dumps(decode_figures(run_directory.read(), "glm5", run_directory.path)))


def test_before_the_server_starts_all_ranks_are_down_and_nothing_else_is_known(scrape, run_directory):
    scrape()
    assert [sample.value for sample in scrape.all("glm5_rank_up")] == [0.0] * 8
    assert not [sample for sample in scrape.samples if sample.name.startswith("glm5_decode")]
    answer = figures(run_directory)
    assert answer["backend"] is None
    assert answer["runningRequests"] is None
    assert answer["window"]["tokensPerSecond"] is None


def test_a_run_directory_that_does_not_exist_yet_is_no_error(tmp_path):
    scrape = Scraper(RunDirectory(tmp_path / "later"))()
    assert scrape.value("glm5_exporter_expected_ranks") == 0


def test_every_metric_of_the_list_appears_once_a_server_decodes_and_no_other(scrape, start_rank):
    for number in range(8):
        start_rank(number).record(step())
    names = scrape().names
    assert names == {metric.name for metric in METRICS}


def test_every_series_carries_the_labels_that_the_list_tells(scrape, start_rank, tmp_path):
    start_rank().record(step())
    (tmp_path / "rank-1").write_bytes(b"garbage")
    scrape()
    for metric in METRICS:
        samples = [s for s in scrape.samples if s.name.removesuffix("_bucket") == metric.name]
        samples = samples or scrape.all(metric.name + "_sum")
        assert samples, metric.name
        for sample in samples:
            assert set(sample.labels) - {"le"} == set(metric.all_labels)


def test_what_every_rank_sees_alike_is_counted_once_and_not_eight_times(scrape, start_rank):
    for number in range(8):
        rank = start_rank(number)
        for _ in range(10):
            rank.record(step(batch=2))
            rank.add_tokens(2)
    scrape()
    assert sum(sample.value for sample in scrape.all("glm5_decode_tokens_total")) == 20
    assert scrape.value("glm5_decode_steps_total", graph="true") == 10
    assert len(scrape.all("glm5_decode_step_seconds_count")) == 8


def test_histograms_are_cumulative_and_end_with_their_count(scrape, start_rank):
    rank = start_rank()
    for milliseconds in (0.004, 8, 8, 20, 20_000):
        rank.record(step(step_ms=milliseconds))
    scrape()
    buckets = [sample.value for sample in scrape.all("glm5_decode_step_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[0] == 1
    assert buckets[-1] == scrape.value("glm5_decode_step_seconds_count", rank="0") == 5
    assert buckets[-2] == 4
    assert scrape.value("glm5_decode_step_seconds_bucket", rank="0", le="0.01") == 3
    assert scrape.value("glm5_decode_step_seconds_sum", rank="0") == pytest.approx(20.036004)


def test_gauges_of_the_last_seconds_fall_to_zero_when_the_server_is_idle(scrape, start_rank, clock):
    rank = start_rank()
    for _ in range(100):
        rank.record(step(batch=4))
        rank.add_tokens(4)
    clock.now += S
    assert scrape().value("glm5_decode_tokens_per_second") == 40
    assert scrape.value("glm5_decode_batch_size") == 4
    clock.now += 60 * S
    rank._heartbeat[0] = clock.now
    scrape()
    for name in ("glm5_decode_tokens_per_second", "glm5_decode_batch_size", "glm5_decode_kv_tokens"):
        assert scrape.value(name) == 0, name


def test_no_counter_moves_while_the_server_is_idle(scrape, start_rank, clock):
    rank = start_rank()
    rank.record(step())
    rank.add_tokens(2)

    def counters() -> dict[str, float]:
        scrape()
        return {
            f"{sample.name}{sample.labels}": sample.value
            for sample in scrape.samples
            if sample.name.startswith(("glm5_decode", "glm5_rank"))
            and sample.name.endswith(("_total", "_count", "_sum", "_bucket", "_seconds"))
        }

    before = counters()
    clock.now += 5 * S
    assert counters() == before


def test_nothing_of_a_dead_rank_is_served_as_if_it_were_fresh(scrape, run_directory, start_rank, clock):
    for number in range(2):
        start_rank(number).record(step())
    clock.now += 11 * S
    scrape()
    assert scrape.value("glm5_rank_up", rank="1") == 0
    assert not [sample for sample in scrape.samples if sample.name.startswith("glm5_decode")]
    assert scrape.value("glm5_rank_last_step_timestamp_seconds", rank="1") is None
    answer = figures(run_directory)
    assert answer["backend"] is None
    assert answer["window"]["ranks"][1] == {
        "rank": 1, "alive": False, "lastStepTime": None, "steps": None, "stepSeconds": None,
        "intervalSeconds": None, "castSeconds": None, "attentionSeconds": None,
    }  # fmt: skip


def test_one_dead_rank_takes_nothing_from_the_others(scrape, start_rank):
    ranks = [start_rank(number) for number in range(8)]
    for rank in ranks:
        rank.record(step())
    ranks[3].close()
    scrape()
    assert [sample.value for sample in scrape.all("glm5_rank_up")] == [1, 1, 1, 0, 1, 1, 1, 1]
    assert len(scrape.all("glm5_decode_step_seconds_count")) == 7


def test_a_restarted_rank_counts_from_zero_again(scrape, start_rank):
    start_rank().add_tokens(100)
    assert scrape().value("glm5_decode_tokens_total") == 100
    start_rank()
    assert scrape().value("glm5_decode_tokens_total") == 0


def test_a_late_rank_appears_when_it_comes(scrape, start_rank):
    start_rank(0)
    assert scrape().value("glm5_rank_up", rank="7") == 0
    start_rank(7)
    assert scrape().value("glm5_rank_up", rank="7") == 1


def test_without_an_expected_number_rank_0_tells_it(tmp_path, clock, start_rank):
    scrape = Scraper(RunDirectory(tmp_path, clock=clock))
    start_rank(0, world_size=2)
    assert [sample.value for sample in scrape().all("glm5_rank_up")] == [1, 0]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.write_bytes(os.urandom(5000)), "not_a_rank_file"),
        (lambda path: path.write_bytes(b""), "not_a_rank_file"),
        (lambda path: os.truncate(path, 3000), "damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:8] + b"\x07" + path.read_bytes()[9:]), "version"),
        (lambda path: path.rename(path.with_name("rank-1")), "wrong_rank"),
        (lambda path: (path.unlink(), path.mkdir()), "unreadable"),
    ],
)
def test_a_spoilt_file_is_counted_by_reason_and_harms_no_other_rank(
    scrape, start_rank, tmp_path, spoil, reason, caplog
):
    start_rank(5).record(step())
    start_rank(0).record(step())
    spoil(rank_path(tmp_path, 0))
    scrape()
    assert scrape.value("glm5_exporter_file_errors_total", reason=reason) == 1
    assert scrape.value("glm5_rank_up", rank="0") == 0
    assert scrape.value("glm5_decode_step_seconds_count", rank="5") == 1
    assert scrape().value("glm5_exporter_file_errors_total", reason=reason) == 2
    assert len(caplog.records) == 1, "the log says it once, not at each scrape"
    os.path.isfile(rank_path(tmp_path, 0)) and os.truncate(rank_path(tmp_path, 0), 1 << 20)


def test_labels_with_quotes_and_line_ends_stay_one_line(scrape, start_rank):
    start_rank(info=BackendInfo('Ne"ver\n', "reference\\", "0.1.0"))
    scrape()
    assert scrape.value("glm5_backend_info", kv_cast='Ne"ver\n', kernel="reference\\") == 1


def test_a_label_that_utf_8_cannot_say_does_not_take_the_page_along(scrape, start_rank):
    start_rank(info=BackendInfo("Ne\ud800ver", "reference", "0.1.0"))
    assert scrape().value("glm5_backend_info", kv_cast="Ne?ver") == 1


def test_an_unverified_backend_shows(scrape, run_directory, start_rank):
    start_rank(info=BackendInfo("Never", "reference", "0.1.0", verified=False))
    assert scrape().value("glm5_backend_verified") == 0
    assert figures(run_directory)["backend"]["verified"] is False


def test_the_operator_s_json_has_the_documented_shape(run_directory, start_rank, clock):
    for number in range(8):
        rank = start_rank(number)
        rank.set_running(3)
        for _ in range(5):
            rank.record(step(step_ms=8, cast_ms=5, interval_ms=10, batch=3))
            rank.add_tokens(3)
    answer = figures(run_directory)
    assert answer["version"] == 1
    assert answer["deployment"] == "glm5"
    assert answer["backend"] == {
        "verified": True, "kvCast": "Never", "kernel": "reference", "version": "0.1.0", "sglang": "0.5.23",
        "flashinfer": "", "torch": "2.14.1", "gpu": "",
    }  # fmt: skip
    assert answer["runningRequests"] == 3
    window = answer["window"]
    ranks = window.pop("ranks")
    assert window == {
        "seconds": 10.0, "steps": 5, "tokens": 15, "tokensPerSecond": 1.5, "batchSize": 3.0, "kvTokens": 300.0,
    }  # fmt: skip
    assert [rank["rank"] for rank in ranks] == list(range(8))
    assert ranks[7] == {
        "rank": 7, "alive": True, "lastStepTime": 1_790_000_000, "steps": 5, "stepSeconds": pytest.approx(0.008),
        "intervalSeconds": pytest.approx(0.010), "castSeconds": pytest.approx(0.005),
        "attentionSeconds": pytest.approx(0.002),
    }  # fmt: skip


@pytest.mark.parametrize(
    "broken",
    [
        {"unit": ""},
        {"unit": "milliseconds"},
        {"help": ""},
        {"help": "too short"},
        {"name": "glm5_things"},
        {"name": "other_total"},
        {"kind": "gauge"},
    ],
)
def test_a_metric_without_unit_description_or_a_conventional_name_cannot_be_listed(broken):
    good = {"name": "glm5_x_total", "kind": "counter", "unit": "1", "help": "Counts what x has done.", "scope": "pod"}
    Metric(**good)
    with pytest.raises(ValueError, match="metric"):
        Metric(**{**good, **broken})


@pytest.mark.parametrize(
    ("variable", "text"),
    [("GLM5_EXPORTER_PORT", "http"), ("GLM5_EXPORTER_PORT", "70000"), ("GLM5_EXPECTED_RANKS", "-1"),
     ("GLM5_EXPECTED_RANKS", "8.0"), ("GLM5_EXPECTED_RANKS", "0")],
)  # fmt: skip
def test_a_bad_setting_is_named(variable, text):
    with pytest.raises(SettingError, match=f"{variable} is '{text}': set it to a whole number"):
        Settings.from_environment({variable: text})


@pytest.fixture
def url(tmp_path):
    server = ExporterServer(Settings(str(tmp_path), 0, "glm5", 8))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def get(url: str, accept: str = "") -> tuple[str, str]:
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=5) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


@pytest.mark.parametrize("accept", ["", "text/plain", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"])
def test_metrics_are_served_in_the_text_format_whatever_is_asked_for(url, accept):
    content_type, text = get(url + "/metrics", accept)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert 'glm5_rank_up{deployment="glm5",rank="0"} 0\n' in text
    assert text.endswith("\n")


def test_every_metric_comes_with_its_kind_and_description(scrape, start_rank):
    start_rank().record(step())
    families = {family.name: family for family in text_string_to_metric_families(scrape().text)}
    for metric in METRICS:
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)


def test_counts_of_years_stay_exact(scrape, start_rank):
    start_rank().add_tokens(12_345_678_901_234_567)
    scrape()
    assert scrape.text.count(" 12345678901234567\n") == 1


def test_json_and_health_are_served_and_other_paths_are_told_what_there_is(url):
    content_type, text = get(url + "/v1/decode?x=1")
    assert (content_type, json.loads(text)["deployment"]) == ("application/json", "glm5")
    assert get(url + "/healthz")[1] == "ok\n"
    with pytest.raises(urllib.error.HTTPError) as error:
        get(url + "/")
    assert error.value.code == 404
    assert "/metrics" in error.value.read().decode()


def test_a_client_that_says_nothing_keeps_no_other_waiting(url):
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)) as half:
        half.sendall(b"GET /metr")
        assert get(url + "/healthz")[1] == "ok\n"


def start_program(tmp_path, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [Path(sys.executable).with_name("glm5-mla"), "exporter"],
        env={**os.environ, "GLM5_RUN_DIR": str(tmp_path), **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_program_ends_well_and_at_once_on_sigterm(tmp_path):
    program = start_program(tmp_path, GLM5_EXPORTER_PORT="0")
    assert "serving" in program.stderr.readline()
    program.send_signal(signal.SIGTERM)
    assert program.wait(timeout=3) == 0


def test_a_port_that_is_taken_says_how_to_choose_another(tmp_path):
    with socket.create_server(("0.0.0.0", 0)) as taken:
        program = start_program(tmp_path, GLM5_EXPORTER_PORT=str(taken.getsockname()[1]))
        message = program.stderr.read()
    assert program.wait(timeout=3) == 2
    assert "set GLM5_EXPORTER_PORT" in message
    assert "Traceback" not in message


def test_a_setting_that_cannot_be_used_ends_the_program_at_once(tmp_path):
    program = start_program(tmp_path, GLM5_EXPORTER_PORT="http")
    assert program.wait(timeout=10) == 2
    assert "GLM5_EXPORTER_PORT is 'http'" in program.stderr.read()


def children(program: subprocess.Popen) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()]


def test_a_server_that_dies_is_said_and_started_again_while_the_program_lives_on(tmp_path):
    program = start_program(tmp_path, GLM5_EXPORTER_PORT="0")
    assert "serving" in program.stderr.readline()
    (first,) = children(program)
    os.kill(first, signal.SIGKILL)
    assert program.stderr.readline() == "glm5-mla exporter: its server was ended by SIGKILL; next start in 1 s\n"
    port = program.stderr.readline().split()[-1]
    (second,) = children(program)
    assert get(f"http://127.0.0.1:{port}/healthz")[1] == "ok\n"
    assert second != first
    program.send_signal(signal.SIGTERM)
    assert program.wait(timeout=3) == 0
    assert not Path(f"/proc/{second}").exists()


def test_pauses_between_starts_grow_to_ten_seconds(capfd, monkeypatch):
    pauses = []
    monkeypatch.setattr(supervisor, "_asked_within", lambda seconds: pauses.append(seconds) or len(pauses) == 6)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, supervisor._WATCHED)
    try:
        status = supervisor.supervise([sys.executable, "-c", "raise SystemExit(1)"])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert status == 0
    assert pauses == [1, 2, 4, 8, 10, 10]
    assert capfd.readouterr().err.count("ended with status 1") == 6


def test_sigterm_between_two_servers_ends_the_program_at_once(tmp_path):
    program = start_program(tmp_path, GLM5_EXPORTER_PORT="0")
    assert "serving" in program.stderr.readline()
    os.kill(children(program)[0], signal.SIGKILL)
    assert "next start in 1 s" in program.stderr.readline()
    program.send_signal(signal.SIGTERM)
    assert program.wait(timeout=3) == 0
    assert program.stderr.read() == ""


def test_the_process_that_keeps_the_server_running_loads_nothing_that_could_break():
    loads = "import sys, glm5_mla.exporter.supervisor; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in modules if name.startswith(("http.server", "json"))]
