"""The agent: supervises the workers of one node through rounds, failures and membership changes.

Layout, in reading order (◦ = pure)
    policy.py ◦       the restart budget
    roles.py ◦        ranks of workers, in the world and in their role
    environment.py ◦  the variables that a worker is given: a contract
    machine.py ◦      what the agent does when something happens
    outcome.py ◦      how it all ended
    exchange.py       what agents of one round tell each other through its store
    health.py         a health endpoint that is alive in every phase
    agent.py          the loop that performs what the machine says
"""

from __future__ import annotations
