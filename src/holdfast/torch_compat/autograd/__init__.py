"""Distributed autograd: what one worker does of it.

Layout, in reading order
    contexts.py         contexts of distributed autograd
    graph.py            where tensors leave a worker and arrive, in torch's graph
    stamps.py           what makes a message of the short path a part of that graph
    ddp.py              DDP in a context of distributed autograd
    engine.py           what one worker does of a distributed backward pass
    optimizer.py        torch's distributed optimizer, without TorchScript
"""

from __future__ import annotations
