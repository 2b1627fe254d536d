"""Fault injection: a plan selects messages and faults, and a wrapper injects them.

Layout, in reading order (◦ = pure)
    plan.py ◦       which faults happen, when, and how often; as text too
    transport.py    the wrapper that injects them into an agent's messages
    backends.py     the backend `faulty`; it takes the options that torch's tests use
"""

from __future__ import annotations
