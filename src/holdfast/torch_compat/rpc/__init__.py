"""Agents, calls and references, by torch's names.

Layout, in reading order
    wire.py             what torch's pickler makes of a value, on its way
    futures.py          futures of torch for calls of ours
    places.py           where each worker is, by a store of torch
    agents.py           agents by torch's names
    raised.py           what a Python function raised
    rrefs.py            references by torch's name
    serving.py          the callee's side of calls
    calls.py            calls, by the names of torch's binding
    quick.py            the short path of most calls
    scripts.py          calls from inside TorchScript, which are errors
"""

from __future__ import annotations
