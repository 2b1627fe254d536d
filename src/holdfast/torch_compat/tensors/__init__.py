"""Tensors on their way to another worker.

Layout, in reading order
    pickling.py         how tensors are pickled
    devices.py          tensors on devices: where they arrive, and how they get there
"""

from __future__ import annotations
