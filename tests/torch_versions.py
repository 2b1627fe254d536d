"""Which torch is installed here, and which ones the page about torch lists."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "torch.md"


def installed() -> str:
    """Return the version of the torch that is installed, without its patch number."""
    return ".".join(metadata.version("torch").split(".")[:2])


def listed() -> list[str]:
    """Return the versions that the page lists, the newest first."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("\n## Versions\n")
    section, _, _ = rest.partition("\n## ")
    return re.findall(r"^\| (\d+\.\d+) \|", section, re.MULTILINE)


needs_newest = pytest.mark.skipif(
    installed() != listed()[0],
    reason=f"needs the flags and names of torch {listed()[0]}; torch {installed()} is installed",
)
