"""Faults on purpose: a plan says which messages go wrong, and a wrapper makes them.

Layout, in reading order (◦ = pure)
    plan.py ◦       what goes wrong, when, and how often; as text too
    transport.py    the wrapper that does it to an agent's messages
    backends.py     agents by name, open to others; the names that torch's tests use
"""

from __future__ import annotations
