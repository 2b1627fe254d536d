"""Runs two replica groups of torchft with one lighthouse, by the launcher that is given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torchft.coordination import LighthouseServer

lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=60_000)
program = Path(__file__).with_name("torchft_train.py")
variables = {**os.environ, "TORCHFT_LIGHTHOUSE": lighthouse.address(), "NUM_REPLICA_GROUPS": "2"}
jobs = [
    subprocess.Popen([*sys.argv[1:], str(program)], env={**variables, "REPLICA_GROUP_ID": str(one)})
    for one in range(2)
]
codes = [job.wait() for job in jobs]
lighthouse.shutdown()
sys.exit(max(codes))
