"""The page of a real job, in a real browser."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.browser import chromium, needs_chromium
from tests.e2e.steered import HOLDFAST, LIMIT_S, SteeredJobs, steered_jobs
from tests.waiting import until

HOSTILE = "<img src=x onerror=alert(1)>"
SCRIPT = f"""\
import os, signal, sys
hostile = {HOSTILE!r} + "<script>alert(1)</script>"
os.write(1, f"attempt {{os.environ['TORCHELASTIC_RESTART_COUNT']}} {{hostile}}\\n".encode())
def fail(*_):
    raise ValueError(hostile)
signal.signal(signal.SIGUSR1, fail)
os.write(2, b"ready\\n")
while True:
    signal.pause()
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[SteeredJobs]:
    with steered_jobs(tmp_path) as made:
        yield made


def text(id_: str) -> str:
    return f"document.getElementById('{id_}').textContent"


def cells(state: str) -> str:
    return f"document.querySelectorAll('.cell[data-state={state}]').length"


@needs_chromium
def test_a_restart_its_reason_logs_and_stacks_appear_without_a_reload(
    jobs: SteeredJobs, tmp_path: Path
) -> None:
    flags = ["--nproc-per-node=2", "--max-restarts=3", "-r=3", f"--log-dir={tmp_path / 'l'}"]
    words = ["--page", "--rdzv-id=j", f"--role={HOSTILE}", *flags, jobs.script(SCRIPT)]
    process = jobs.start(*words)
    (agent,) = jobs.running("j")["agents"]
    with chromium() as browser:
        browser.open(agent["page"])
        browser.wait_for(f"document.readyState == 'complete' && {cells('running')} == 2")
        assert browser.run("location.href").endswith("/")  # without the token
        browser.run("window.never_loaded_again = true")

        # The log of rank 1; the second line says that the signal is handled from now on.
        browser.run("document.querySelectorAll('.cell')[1].click()")
        browser.wait_for(f"{text('text')}.includes('attempt 0 {HOSTILE}')")
        browser.wait_for(f"{text('text')}.includes('ready')")

        os.kill(agent["workers"][1]["pid"], signal.SIGUSR1)
        browser.wait_for(f"{text('events')}.includes('WorkersRestarting')")
        browser.wait_for(f"{cells('running')} == 2 && {text('cards')}.includes('1 of 3')")
        why = f"rank 1 on {agent['host']} failed (exit code 1): ValueError: {HOSTILE}"
        assert why in browser.run(text("events"))
        browser.wait_for("document.querySelectorAll('#strip div').length == 2")

        # The log goes on with the next attempt.
        browser.wait_for(f"{text('text')}.includes('attempt 1 {HOSTILE}')")
        browser.run("document.getElementById('allstacks').click()")
        browser.wait_for(
            f"{text('text')}.startsWith('rank') && {text('text')}.includes('<module>')"
        )

        assert jobs.call("stop", "j").returncode == 0
        browser.wait_for(f"{text('live')} == 'the job has ended'")
        assert browser.run("window.never_loaded_again")
        assert browser.run("document.querySelectorAll('img, #text script, li script').length") == 0
        assert browser.troubles() == []
        here = urlsplit(agent["page"]).netloc
        assert {urlsplit(url).netloc for url in browser.urls() if url[:5] != "data:"} == {here}
    assert process.wait(LIMIT_S) == 79
    host, _, port = here.partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=LIMIT_S)


@needs_chromium
def test_without_the_token_there_is_no_page(jobs: SteeredJobs) -> None:
    jobs.start("--page", "--rdzv-id=j", jobs.script("import signal; signal.pause()"))
    (agent,) = jobs.running("j")["agents"]
    link, _, _ = agent["page"].partition("?")
    with chromium() as browser:
        browser.open(link)
        browser.wait_for("document.body && document.body.innerText.includes('has the token')")
        browser.open(agent["page"])
        browser.wait_for(f"document.readyState == 'complete' && {cells('running')} == 1")
        browser.open(link)  # the cookie suffices now
        browser.wait_for(f"document.readyState == 'complete' && {cells('running')} == 1")


def test_the_command_serves_a_page_until_the_job_ends(jobs: SteeredJobs) -> None:
    jobs.start("--rdzv-id=j", jobs.script("import signal; signal.pause()"))
    jobs.running("j")
    with subprocess.Popen(
        [*HOLDFAST, "page", "j"], env=jobs.variables, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            parts = urlsplit(server.stdout.readline().strip())
            assert (parts.scheme, parts.hostname, len(parts.query)) == ("http", "127.0.0.1", 38)
            assert parts.port is not None
            socket.create_connection(("127.0.0.1", parts.port), timeout=LIMIT_S).close()
            assert jobs.call("stop").returncode == 0
            assert server.wait(LIMIT_S) == 0
        finally:
            server.kill()


def test_interrupting_the_command_leaves_the_job(jobs: SteeredJobs) -> None:
    one = jobs.start("--rdzv-id=j", jobs.script("import signal; signal.pause()"))
    jobs.running("j")
    with subprocess.Popen(
        [*HOLDFAST, "page"], env=jobs.variables, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline().startswith("http://127.0.0.1:")
            server.send_signal(signal.SIGINT)
            assert server.wait(LIMIT_S) == 130
        finally:
            server.kill()
    assert one.poll() is None
    until(lambda: jobs.status("j").get("state") == "running", every_s=0.05)
