"""Charts of a run: `python -m bench.charts RUN.json FOLDER` draws SVG files from what it wrote.

    aims.svg    each row that has a figure, as a multiple of its aim
    torch.svg   each row that has torch's figure, as a multiple of it
    growth.svg  figures by count, with the exponents

Colours and fonts are in each file, so that it looks the same anywhere.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from bench.table import number

__all__ = ["draw"]

WIDTH, LABELS, ROW, HEAD = 920, 400, 20, 64
GOOD, BAD, INK, FAINT = "#2f7d5b", "#c2662d", "#24292f", "#d8dee4"
COLOURS = ("#2f7d5b", "#3b6fb5", "#c2662d", "#8250a8", "#8a7a2c", "#b0416b", "#4f8f9a", "#6b7280")
FONT = "font-family:system-ui,sans-serif;font-size:12px"


class Bar(NamedTuple):
    """A row of a chart: its multiple, 1 being the line in the middle, and what is written."""

    label: str
    multiple: float
    words: str


def draw(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the charts of a run by file name; those for which it has figures."""
    where = _caption(run)
    charts = {
        "aims.svg": _bars(
            "Of the aim: a bar to the right meets it", where, _multiples(run["aims"], _of_aim)
        ),
        "torch.svg": _bars(
            "Beside torch: a bar to the right is better", where, _multiples(run["aims"], _of_torch)
        ),
        "growth.svg": _lines("Growth with the work", where, run["growth"]),
    }
    return {name: text for name, text in charts.items() if text}


def _caption(run: Mapping[str, Any]) -> str:
    machine = run["machine"]
    words = f"commit {machine['commit']}, {machine['cores']} cores ({machine['busy']:.1f} busy)"
    return f"{words}, a quick run: no figure" if run["quick"] else words


def _multiples(
    rows: Sequence[Mapping[str, Any]], multiple: Callable[[Mapping[str, Any]], float | None]
) -> list[Bar]:
    bars = []
    for row in rows:
        times = multiple(row)
        if times:
            figure = f"{number(row['holdfast'])} {row['unit']}".strip()
            bars.append(Bar(row["work"], times, f"{number(times)} times ({figure})"))
    return bars


def _of_aim(row: Mapping[str, Any]) -> float | None:
    return row["of_aim"] if row["of_aim"] is None else float(row["of_aim"])


def _of_torch(row: Mapping[str, Any]) -> float | None:
    """Return how many times as good as torch, whichever way is better for the row."""
    if not row["torch"] or not row["holdfast"]:
        return None
    share = row["holdfast"] / row["torch"]
    return float(share if row["unit"] == "a second" else 1 / share)


def _bars(title: str, caption: str, bars: Sequence[Bar]) -> str:
    """Return bars from a line in the middle, by the logarithm of their multiples."""
    if not bars:
        return ""
    reach = max(1.0, *(abs(math.log10(bar.multiple)) for bar in bars))
    half = (WIDTH - LABELS - 130) / 2
    middle = LABELS + half
    height = HEAD + ROW * len(bars) + 16
    parts = [_line(middle, HEAD - 8, middle, height - 12, INK)]
    for power in range(-math.floor(reach), math.floor(reach) + 1):
        x = middle + half * power / reach
        parts.append(_line(x, HEAD - 8, x, height - 12, FAINT))
        parts.append(_text(x, HEAD - 12, f"{10**power:g}", "middle"))
    for index, bar in enumerate(bars):
        y = HEAD + ROW * index
        length = half * math.log10(bar.multiple) / reach
        colour = GOOD if bar.multiple >= 1 else BAD
        parts.append(_text(LABELS - 12, y + 13, _short(bar.label), "end"))
        left = min(middle, middle + length)
        parts.append(
            f'<rect x="{left:.1f}" y="{y + 3}" width="{max(1.0, abs(length)):.1f}" '
            f'height="{ROW - 6}" fill="{colour}"/>'
        )
        parts.append(_text(max(middle, middle + length) + 5, y + 13, bar.words))
    return _document(title, caption, height, parts)


def _lines(title: str, caption: str, ways: Mapping[str, Any]) -> str:
    """Return lines over logarithmic axes; each figure is a multiple of that at the first count."""
    drawn: list[tuple[str, dict[int, float], float]] = []
    for way, subjects in ways.items():
        for subject, found in subjects.items():
            figures = {int(count): float(one) for count, one in found["figures"].items()}
            if found["exponent"] is not None:
                drawn.append((f"{way} ({subject})", figures, found["exponent"]))
    if not drawn:
        return ""
    points = [
        [(count / min(all_), figure / all_[min(all_)]) for count, figure in all_.items()]
        for _, all_, _ in drawn
    ]
    across = max(1.0, *(math.log10(x) for line in points for x, _ in line))
    heights = [math.log10(y) for line in points for _, y in line]
    low, high = min(-0.5, *heights), max(0.5, *heights)
    box = (60.0, HEAD + 10.0, WIDTH - 20.0, HEAD + 330.0)

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            box[0] + (box[2] - box[0]) * x / across,
            box[3] - (box[3] - box[1]) * (y - low) / (high - low),
        )

    parts = []
    for power in range(math.ceil(low), math.floor(high) + 1):
        _, y = place(0, power)
        parts.append(_line(box[0], y, box[2], y, FAINT))
        parts.append(_text(box[0] - 6, y + 4, f"{10**power:g} times", "end"))
    for power in range(math.floor(across) + 1):
        x, _ = place(power, 0)
        parts.append(_line(x, box[1], x, box[3], FAINT))
        parts.append(_text(x, box[3] + 16, f"{10**power:g} times the work", "middle"))
    for index, ((label, _, power_), line) in enumerate(zip(drawn, points, strict=True)):
        colour = COLOURS[index % len(COLOURS)]
        spots = [place(math.log10(x), math.log10(y)) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        dashes = "" if index < len(COLOURS) else ' stroke-dasharray="5 3"'
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'
        )
        y = box[3] + 40 + ROW * index
        parts.append(_line(box[0], y - 4, box[0] + 24, y - 4, colour, 3))
        parts.append(_text(box[0] + 32, y, f"{label}: exponent {power_:.2f}"))
    return _document(title, caption, int(box[3]) + 50 + ROW * len(drawn), parts)


def _short(label: str) -> str:
    return label if len(label) <= 62 else f"{label[:61]}…"


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _line(x: float, y: float, to_x: float, to_y: float, colour: str, width: int = 1) -> str:
    ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def _document(title: str, caption: str, height: int, parts: Sequence[str]) -> str:
    space = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
    lines = [
        f'<svg {space} width="{WIDTH}" height="{height}" style="{FONT}" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="24" style="font-size:16px;font-weight:600">{escape(title)}</text>',
        _text(16, 42, caption),
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def main(run: str, folder: str) -> None:
    charts = draw(json.loads(Path(run).read_text()))
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, text in charts.items():
        (Path(folder) / name).write_text(text)
        print(f"written to {Path(folder) / name}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m bench.charts RUN.json FOLDER")
    main(*sys.argv[1:])
