"""Downloads from a hub: complete, resumed, not repeated, and explained when they fail."""

import json
import os
import subprocess
import sys
import time

import pytest

pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.sglang

from hub import COMMIT, Hub  # noqa: E402

REPO = "zai-org/GLM-tiny"
FILES = {
    "config.json": b'{"architectures": ["GlmMoeDsaForCausalLM"]}',
    "model-00001.safetensors": bytes(range(256)) * 4096 * 60,
    "tokenizer/vocab.txt": b"a\nb\n",
}


def command(tmp_path, repo=REPO):
    program = [sys.executable, "-c", "import sys; from glm5_mla.cli import main; sys.exit(main())"]
    return [*program, "download", "--repo", repo, "--out", str(tmp_path / "out")]


def environment(hub, tmp_path, **variables):
    (tmp_path / "run").mkdir(exist_ok=True)
    made = os.environ | {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "0",
        "GLM5_RUN_DIR": str(tmp_path / "run"),
        "GLM5_TERMINATION_LOG": str(tmp_path / "termination-log"),
    }
    return made | variables


def run_download(hub, tmp_path, repo=REPO, **variables):
    log = tmp_path / "termination-log"
    log.write_text("")
    done = subprocess.run(
        command(tmp_path, repo),
        env=environment(hub, tmp_path, **variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done, log.read_text()


def test_a_repository_arrives_whole_and_is_not_fetched_again(tmp_path):
    with Hub(REPO, FILES) as hub:
        done, _ = run_download(hub, tmp_path)
        assert done.returncode == 0, done.stderr
        for name, data in FILES.items():
            assert (tmp_path / "out" / name).read_bytes() == data
        assert f"{REPO}@{COMMIT} is complete" in done.stdout
        asked = len(hub.bodies)
    again, _ = run_download(hub, tmp_path)  # the hub is away now
    assert again.returncode == 0, again.stderr
    assert len(hub.bodies) == asked


def test_a_download_that_was_cut_off_resumes_where_it_stopped(tmp_path):
    large = "model-00001.safetensors"
    with Hub(REPO, FILES, cut_after=22_000_000, cuts=100) as hub:
        process = subprocess.Popen(command(tmp_path), env=environment(hub, tmp_path))
        while len([name for name, _ in hub.bodies if name == large]) < 2:
            time.sleep(0.05)
        process.kill()
        process.wait()
        hub.cuts = 0
        hub.bodies.clear()
        again, _ = run_download(hub, tmp_path)
    assert again.returncode == 0, again.stderr
    assert [start >= 10_000_000 for name, start in hub.bodies if name == large] == [True]
    assert (tmp_path / "out" / large).read_bytes() == FILES[large]


def test_a_damaged_file_is_not_kept(tmp_path):
    large = "model-00001.safetensors"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f"{large}.{COMMIT[:8]}.part").write_bytes(b"x" * 1000)
    with Hub(REPO, FILES) as hub:
        done, log = run_download(hub, tmp_path)
        assert done.returncode == 78
        assert "arrived damaged" in json.loads(log)["message"]
        again, _ = run_download(hub, tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "out" / large).read_bytes() == FILES[large]


def test_a_missing_repository_is_explained_in_the_termination_log(tmp_path):
    with Hub(REPO, FILES) as hub:
        done, log = run_download(hub, tmp_path, repo="nobody/nothing")
    assert done.returncode == 78
    said = json.loads(log)
    assert said["reason"] == "DownloadFailed"
    assert "the hub has no such repository" in said["message"]


def test_a_hub_that_is_away_is_named(tmp_path):
    hub = Hub(REPO, FILES)
    hub.server_close()
    done, log = run_download(hub, tmp_path)
    assert done.returncode == 78
    assert hub.url in json.loads(log)["message"]


def test_a_proxy_is_heeded(tmp_path):
    with Hub(REPO, FILES) as hub:
        # A name that nobody resolves: only by way of the proxy is there an answer.
        done, log = run_download(hub, tmp_path, HF_ENDPOINT="http://hub.invalid", HTTP_PROXY=hub.url, NO_PROXY="")
    assert done.returncode == 0, log
    assert (tmp_path / "out" / "config.json").read_bytes() == FILES["config.json"]
