"""Imported by what forks the agents of these tests: torch's names are ours there, for good."""

from __future__ import annotations

import torch._dynamo  # noqa: F401  # torch's logger imports it to tell of an error: once, here

import holdfast.torch_compat
from tests.e2e.torch_compat import agents

__all__ = ["agents"]

holdfast.torch_compat.install()
