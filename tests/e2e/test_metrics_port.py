"""The metrics of a real job, read by the real promtool and scraped by a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.steered import LIMIT_S, SteeredJobs, steered_jobs
from tests.waiting import until

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")

needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None, reason="needs Debian's package prometheus"
)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[SteeredJobs]:
    with steered_jobs(tmp_path) as made:
        yield made


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as reply:
        content: bytes = reply.read()
        return content


def restarted(jobs: SteeredJobs) -> tuple[subprocess.Popen[str], str]:
    """Start a job whose rank 1 fails once; return it, and where its metrics are, in round 2."""
    flags = ["--nproc-per-node=2", "--max-restarts=2", "--metrics-port=0"]
    process = jobs.start("--rdzv-id=j", *flags, "--role=trainer", jobs.script())
    (agent,) = jobs.running("j", round_=2)["agents"]
    return process, agent["metrics"]


def test_a_job_tells_its_metrics_until_it_ends(jobs: SteeredJobs) -> None:
    process, where = restarted(jobs)
    text = fetch(where).decode()
    assert 'holdfast_restarts_by_cause_total{cause="rank 1: ValueError",job="j",node="' in text
    assert text.count('role="trainer",state="running"} 2.0\n') == 1
    assert text.count('rank="1",role="trainer"} 1.0\n') == 2  # it runs, and failed once
    assert "holdfast_recovery_seconds_count{" in text
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetch(where.removesuffix("/metrics"))
    assert refused.value.code == 404
    refused.value.close()
    assert jobs.call("stop").returncode == 0
    assert process.wait(LIMIT_S) == 79
    with pytest.raises(urllib.error.URLError, match="refused"):
        fetch(where)


@pytest.mark.parametrize("value", ["9x", "-1", "65536", "a:b:c", "host:"])
def test_a_port_that_is_none_is_one_line(jobs: SteeredJobs, value: str) -> None:
    done = jobs.call("run", f"--metrics-port={value}", jobs.script())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"holdfast: argument --metrics-port: {value!r}: must be a port of loopback from 0 to "
        "65535, or host:port\n"
    )


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Run a Prometheus that scrapes one target; give its address."""
    config = folder / "prometheus.yml"
    job = {"job_name": "holdfast", "honor_labels": True, "static_configs": [{"targets": [target]}]}
    every = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    config.write_text(json.dumps({"global": every, "scrape_configs": [job]}))
    assert PROMETHEUS is not None
    log_file = folder / "prometheus.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        listening = re.compile(r'msg="?Listening on"? address=(127\.0\.0\.1:\d+)')
        until(lambda: listening.search(log_file.read_text()), log_file.read_text, every_s=0.05)
        found = listening.search(log_file.read_text())
        assert found is not None
        yield f"http://{found[1]}"
    finally:
        process.kill()
        process.wait(LIMIT_S)


def ask(server: str, query: str) -> str:
    """Wait until Prometheus has one answer to a query; return its value."""
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        try:
            url = f"{server}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
            found[:] = json.loads(fetch(url))["data"]["result"]
        except OSError:  # not ready yet
            return False
        return bool(found)

    until(is_there, lambda: query, every_s=0.1)
    (one,) = found
    return str(one["value"][1])


@needs_prometheus
def test_promtool_and_prometheus_read_them(jobs: SteeredJobs, tmp_path: Path) -> None:
    _, where = restarted(jobs)
    assert PROMTOOL is not None
    checked = subprocess.run(
        [PROMTOOL, "check", "metrics"],
        input=fetch(where),
        capture_output=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
    target = where.removeprefix("http://").removesuffix("/metrics")
    with prometheus(tmp_path, target) as server:
        wanted = 'holdfast_restarts_by_cause_total{job="j",cause="rank 1: ValueError"}'
        assert ask(server, wanted) == "1"
        quantile = "histogram_quantile(0.5, holdfast_recovery_seconds_bucket)"
        assert float(ask(server, quantile)) > 0
