"""From lists of hosts and places to the flags of each node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli import run_on
from holdfast.cli.arguments import Parser
from holdfast.cli.run_flags import Text, add_flags, read_flags
from holdfast.on.order import decode_order
from holdfast.on.ssh import HostCommand
from tests.unit.cli.conftest import Run
from tests.unit.on.test_place import place


def texts(*words: str) -> dict[str, Text]:
    parser = Parser(prog="p")
    add_flags(parser)
    return read_flags(parser.parse_args(words), {})


def test_what_is_given_beats_the_place() -> None:
    found = run_on.fill_in(texts("--rdzv-id=mine", "--rdzv-conf=rank=7"), place())
    assert found["rdzv_id"] == Text("mine", "argument --rdzv-id")
    assert found["nnodes"] == Text("3", "what --on x found")
    assert found["rdzv_conf"].value == "rank=1,is_host=false,rank=7"
    found = run_on.fill_in(texts("--rdzv-backend=etcd", "--rdzv-endpoint=e:1"), place())
    assert found["rdzv_conf"] == Text("")


def test_a_dry_run_shows_what_each_host_would_be_told(run: Run) -> None:
    words = ("--module", "--max-restarts=2", "--", "x", "--hosts")
    code, out, err = run("run", "--dry-run", "--hosts", "ann@a,b:4", *words)
    assert (code, err) == (0, "")
    first, second = json.loads(out)["hosts"]
    assert first["host"] == "ann@a"
    assert "--rdzv-conf=rank=0,is_host=true" in first["arguments"]
    assert "--rdzv-conf=rank=1,is_host=false" in second["arguments"]
    assert "--nproc-per-node=4" in second["arguments"]
    assert second["arguments"][-3:] == ["--", "x", "--hosts"]


def started(
    run: Run, monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[list[HostCommand], int]:
    seen: list[tuple[list[HostCommand], int]] = []

    def see(commands: list[HostCommand], fewest: int, *rest: object) -> int:
        seen.append((commands, fewest))
        return 5

    monkeypatch.setattr(run_on, "run_on_hosts", see)
    code, _, err = run("run", *words)
    assert code == 5
    assert "hosts by ssh: a, b\n" in err
    return seen[0]


def test_every_host_gets_the_secret_that_was_made(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, fewest = started(run, monkeypatch, "--hosts=a,b", "x.py")
    secrets = {decode_order(one.order).secret for one in commands}
    assert len(secrets) == 1
    assert len(secrets.pop()) == 64
    assert fewest == 2


def test_a_secret_that_is_given_is_used(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("s" * 20)
    file.chmod(0o600)
    words = ("--hosts=a,b", "--nnodes=1:2")
    (one, _), fewest = started(run, monkeypatch, *words, f"--secret-file={file}", "x.py")
    assert decode_order(one.order).secret == "s" * 20
    assert fewest == 1
    monkeypatch.setenv("HOLDFAST_SECRET", "t" * 20)
    (one, _), _ = started(run, monkeypatch, *words, "x.py")
    assert decode_order(one.order).secret == "t" * 20


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hosts=a", "--host-file=x"], "argument --hosts: not together with --host-file"),
        (["--hosts=a b"], "argument --hosts: host 'a b': must be"),
        (["--host-file=/nowhere"], "host file '/nowhere': No such file or directory"),
        (["--host-file=/bin/sh"], "host file '/bin/sh': is not UTF-8"),
        (["--hosts=a", "--on=slurm"], "argument --on: 'slurm' not together with a list of hosts"),
        (["--hosts=a", "--node-rank=1"], "argument --node-rank: not together with a list of hosts"),
        (["--hosts=a", "--secret-file=/nowhere"], "secret file '/nowhere': no such file"),
    ],
)
def test_mistakes_are_told_in_one_line(run: Run, words: list[str], message: str) -> None:
    code, out, err = run("run", *words, "x.py")
    assert (code, out) == (2, "")
    assert err.startswith(f"holdfast: {message}")
    assert err.count("\n") == 1


def test_a_host_file_has_a_largest_size(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_on, "_HOST_FILE_BYTES_MAX", 4)
    path = tmp_path / "hosts"
    path.write_text("a\nb\n\n")
    assert "is larger than 4 bytes" in run("run", f"--host-file={path}", "x.py")[2]
    path.write_text("a\nb\n")
    assert run("run", "--dry-run", f"--host-file={path}", "x.py")[0] == 0
