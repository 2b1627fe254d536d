"""Fault injection: a plan selects messages and faults, and a transport injects them.

Layout, in reading order (◦ = pure)
    plan.py ◦       which faults happen, when, and how often; as text too
    transport.py    injects them into the messages of an agent, below its calls
    backends.py     the backend `faulty`; it takes the options that torch's tests use
"""

from __future__ import annotations
