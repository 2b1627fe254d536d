"""`elastic_launch` in a notebook: a real kernel runs the cells, as Jupyter would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 200

# Runs a notebook of these cells; writes the outputs of each to a file, since a kernel repeats on
# its own standard output what its cells show.
RUN = """
import json, sys
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
book = new_notebook(cells=[new_code_cell(cell) for cell in json.load(sys.stdin)])
NotebookClient(book, timeout=150, kernel_name="python3", allow_errors=True).execute()
with open("outputs.json", "w") as file:
    json.dump([cell.outputs for cell in book.cells], file)
"""
DEFINE = """
import os, holdfast
config = holdfast.LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2)
scale = 10

class Point:
    def __init__(self, x):
        self.x = x

def work(point):
    os.write(1, f"rank {os.environ['RANK']} is here\\n".encode())
    return Point(point.x * scale + int(os.environ["RANK"]))
"""
LAUNCH = """
points = holdfast.elastic_launch(config, work)(Point(4))
[points[rank].x for rank in range(2)], all(type(one) is Point for one in points.values())
"""
LAMBDA = 'holdfast.elastic_launch(config, lambda: scale + int(os.environ["RANK"]))()'
FAIL = """
def fail():
    if os.environ["RANK"] == "1":
        raise ValueError("a mistake in a cell")

holdfast.elastic_launch(config, fail)()
"""


def run_cells(folder: Path, *cells: str) -> list[list[dict[str, Any]]]:
    """Run cells in a fresh kernel; return the outputs of each."""
    variables = {**os.environ, "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    del variables["PYTEST_CURRENT_TEST"]  # a kernel that sees it leaves descriptors alone
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        variables[name] = str(folder / name.lower())
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(cells),
        env=variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outputs: list[list[dict[str, Any]]] = json.loads((folder / "outputs.json").read_text())
    return outputs


def written(cells: list[list[dict[str, Any]]]) -> str:
    """Return what cells show of standard output."""
    outputs = [output for cell in cells for output in cell]
    return "".join(one["text"] for one in outputs if one.get("name") == "stdout")


def result(outputs: list[dict[str, Any]]) -> str:
    """Return what a cell shows as its value."""
    [shown] = [one["data"]["text/plain"] for one in outputs if "data" in one]
    return str(shown)


def test_functions_of_cells_run_in_workers(tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="needs nbclient and ipykernel (requirements/test.in)")
    cells = run_cells(tmp_path, DEFINE, LAUNCH, LAMBDA, FAIL)
    _, launched, by_lambda, failed = cells
    assert result(launched) == "([40, 41], True)"
    # A thread of the kernel reads it: a busy machine may show it in a later cell.
    assert sorted(written(cells).splitlines()) == ["rank 0 is here", "rank 1 is here"]
    assert result(by_lambda) == "{0: 10, 1: 11}"
    [error] = [one for one in failed if one["output_type"] == "error"]
    assert error["ename"] == "WorkersFailed"
    assert "a mistake in a cell" in error["evalue"]
