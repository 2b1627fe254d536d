"""The pytest plugin reports each kind of leak, blames the right one, and takes its options."""

from __future__ import annotations

import os
import re
import signal

import pytest

pytest_plugins = ["pytester"]


OPTIONS = ("-p", "holdfast.testing.plugin", "-p", "no:cacheprovider", "-o", "leak_grace_s=0.3")


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*OPTIONS, *options)


def run_apart(pytester: pytest.Pytester) -> pytest.RunResult:
    """Run the inner tests in a process of their own, since their leaks must not become ours."""
    return pytester.runpytest_subprocess(*OPTIONS, timeout=60)


# Each test of this file leaves one thing behind; the name says which.
LEAKING = """
import os, subprocess, tempfile, threading

kept = []

def test_thread():
    threading.Thread(target=threading.Event().wait, name="left", daemon=True).start()

def test_fd():
    kept.append(os.pipe())

def test_child():
    kept.append(subprocess.Popen(["sleep", "60"]))

def test_orphan():
    subprocess.run(["sh", "-c", "sleep 61 & exit 0"], start_new_session=True)

def test_file():
    tempfile.mkdtemp(prefix="scrap")

def test_nothing():
    pass
"""


def test_each_kind_of_leak_is_an_error_of_its_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(LEAKING)
    result = run_apart(pytester)
    for pid in re.findall(r"process: (\d+) ", result.stdout.str()):
        os.kill(int(pid), signal.SIGKILL)
    result.assert_outcomes(passed=6, errors=5)
    result.stdout.fnmatch_lines(
        [
            "*the test test_thread left 1 thing behind:*",
            "*thread: 'left' (daemon)*",
            "*the test test_fd left 2 things behind:*",
            "*open file: * -> pipe:*",
            "*the test test_child left 1 thing behind:*",
            "*process: * sleep 60*",
            "*the test test_orphan left 1 thing behind:*",
            "*process: * sleep 61*",
            "*the test test_file left 1 thing behind:*",
            "*temporary file: scrap*",
        ]
    )


def test_what_wider_fixtures_hold_is_not_blamed_on_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, threading, pytest

        @pytest.fixture(scope="module")
        def server():
            stop = threading.Event()
            thread = threading.Thread(target=stop.wait)
            thread.start()
            pipe = os.pipe()
            yield
            stop.set()
            thread.join()
            for fd in pipe:
                os.close(fd)

        def test_one(server): pass
        def test_two(server): pass
        """
    )
    run(pytester).assert_outcomes(passed=2)


def test_what_a_wider_fixture_leaves_is_reported_at_the_end(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, pytest

        @pytest.fixture(scope="module")
        def server():
            global kept
            kept = os.pipe()
            yield

        def test_one(server): pass
        def test_two(server): pass
        """
    )
    result = run_apart(pytester)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*fixtures of the session or of a module left 2 things*"])


def test_a_tests_own_fixtures_are_gone_before_the_check(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, tempfile, pytest

        @pytest.fixture
        def pipe():
            fds = os.pipe()
            yield
            for fd in fds:
                os.close(fd)

        def test_it(pipe, tmp_path):
            (tmp_path / "mine").touch()
            with tempfile.TemporaryDirectory():
                pass
        """
    )
    run(pytester).assert_outcomes(passed=1)


def test_a_test_may_say_that_it_leaks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, pytest

        @pytest.mark.allow_leaks("a library that keeps a pipe")
        def test_it():
            global kept
            kept = os.pipe()

        def test_next():
            pass
        """
    )
    run_apart(pytester).assert_outcomes(passed=2)


def test_transcripts_are_compared_and_rewritten(pytester: pytest.Pytester) -> None:
    story = pytester.path / "story.txt"
    story.write_text("say hello\n----\ngoodbye\n")
    pytester.makepyfile(
        """
        from pathlib import Path

        def test_it(transcript):
            transcript(Path("story.txt"), lambda command: command.args[0])
        """
    )
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*story.txt:1: say", "*- goodbye", "*+ hello"])
    run(pytester, "--rewrite").assert_outcomes(passed=1)
    assert story.read_text() == "say hello\n----\nhello\n"
    run(pytester).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("options", "seeds"),
    [
        ((), "range(0, 10)"),
        (("--sim-seeds=3",), "range(0, 3)"),
        (("--sim-seeds=3", "--sim-start=7"), "range(7, 10)"),
        (("--sim-start=7",), "range(7, 17)"),
    ],
)
def test_seeds_are_chosen_by_options(
    pytester: pytest.Pytester, options: tuple[str, ...], seeds: str
) -> None:
    pytester.makepyfile(f"def test_it(sim_range):\n    assert sim_range(10) == {seeds}\n")
    run(pytester, *options).assert_outcomes(passed=1)
