"""What importing costs: a whole interpreter with the import, less a bare one."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from bench.subjects import available
from bench.table import number, render

__all__ = ["imports"]

CASES = {
    "import holdfast": "import holdfast",
    "… and open_store": "import holdfast; holdfast.open_store",
    "import torch": "import torch",
}


def imports(rounds: int) -> tuple[str, object]:
    """Measure imports, taking turns with a bare interpreter."""
    rows, data = [], {}
    for label, code in CASES.items():
        if "torch" in code and not available("torch"):
            rows.append([label, "torch is not installed"])
            continue
        extra = [_run(code) - _run("pass") for _ in range(rounds)]
        data[label] = statistics.median(extra) * 1000
        rows.append([label, number(data[label])])
    return render("import time", ["", "ms"], rows), data


def _run(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began
