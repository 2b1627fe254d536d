"""Workers of several hosts: by TCP, with a network of its own for each of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.rpc.api_world import path

PROGRAM = Path(__file__).with_name("rpc_hosts.py")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have networks of its own")
@pytest.mark.skipif(not shutil.which("ip"), reason="nothing to lay cables with: no `ip`")
def test_workers_of_two_hosts_call_each_other_until_their_cable_is_cut() -> None:
    """Then they are lost to each other, and stay so when it is mended."""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, str(PROGRAM)],
        env=os.environ | {"PYTHONPATH": path(), "HOLDFAST_SECRET": "of both hosts and nobody else"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    if done.stderr.startswith("unshare:"):
        pytest.skip(f"this system gives no network of its own: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    lost, refused = done.stdout.splitlines()
    assert "Connection closed by peer (it is gone)" in lost
    assert "the caller has been given up" in refused
