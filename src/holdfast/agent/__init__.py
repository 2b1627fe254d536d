"""The agent: supervises the workers of one node through rounds, failures and membership changes.

Layout, in reading order (◦ = pure)
    policy.py ◦       the restart budget
    roles.py ◦        ranks of workers, in the world and in their role
    environment.py ◦  the variables that a worker is given: a contract
    outcome.py ◦      how it all ended
    effects.py ◦      what the machine wants done
    machine.py ◦      what the agent does when something happens
    job.py ◦          what an agent is to do, everything decided
    exchange.py       what agents of one round tell each other through its store
    health.py         a health endpoint that is alive in every phase
    clerk.py          a thread that runs tasks
    vouching.py       which connections from other hosts are the job's
    torch_store.py    torch's store, at the master's address of a round
    attempt.py        the workers of one round on this node
    narrator.py       tells what the agent does
    agent.py          the loop that performs what the machine says
"""

from __future__ import annotations
