"""torch's RPC by torch itself, and by holdfast under torch's names, in one run.

Both are called by the same lines of torch's API. They take turns, round by round.
"""

from __future__ import annotations

from bench.rpc import Effort, medians, take_turns
from bench.rpc_caller import CUDA_MB, IN_FLIGHT
from bench.rpc_report import Data
from bench.table import number, render

__all__ = ["QUICK", "WHOLE", "torch_calls"]

OURS, THEIRS = "facade", "torch"
QUICK = Effort(rounds=1, seconds=0.05, megabytes=(1, 4), peers=0)
WHOLE = Effort(rounds=5, seconds=0.5, megabytes=(1, 64), peers=0)


def torch_calls(effort: Effort, part: str = "") -> tuple[str, object]:
    """Measure both in turn, all or a part; each figure is the median of the rounds."""
    sizes, names = ",".join(map(str, effort.megabytes)), (OURS, THEIRS)
    rounds = take_turns("rpc_caller", names, effort.rounds, str(effort.seconds), sizes, part)
    data = {name: medians(figures) for name, figures in rounds.items()}
    return _report(data, effort.megabytes), {"rounds": rounds, "medians": data}


def _report(data: dict[str, Data], megabytes: tuple[int, ...]) -> str:
    labels = {
        "no-op p50": "nothing, p50, µs",
        "no-op p99": "nothing, p99, µs",
        "matrix p50": "2 by 2 matrix there and back, p50, µs",
        "cpu caller": "nothing, the caller's processor, µs",
        "cpu callee": "nothing, the callee's processor, µs",
        "pipelined": f"calls a second, {IN_FLIGHT} in flight",
        **{f"echo {size}": f"{size} MB there and back, ms" for size in megabytes},
        **{f"cuda {size}": f"{size} MB from GPU to GPU and back, ms" for size in CUDA_MB},
        "references": "`remote` and `to_here`, a second",
        "backward": "a call and its distributed backward, a second",
        "steps": "training steps of a model elsewhere, a second",
        "forward ms": "… forward, ms",
        "backward ms": "… backward, ms",
        "step ms": "… DistributedOptimizer.step, ms",
    }
    rows = []
    for figure, label in labels.items():
        ours, theirs = _get(data[OURS], figure), _get(data[THEIRS], figure)
        if ours is None or theirs is None:
            why = "no GPU" if figure.startswith("cuda") else "not measured"
            rows.append([label, why, "", ""])
        else:
            rows.append([label, *map(number, (ours, theirs, ours / theirs))])
    head = ["", "holdfast", "torch", "of torch's"]
    return render("torch's RPC API", head, rows)


def _get(figures: Data, label: str) -> float | None:
    return None if isinstance(figures, str) else figures.get(label)
