"""The agent: supervises the workers of one node through rounds, failures and membership changes.

Layout, in reading order (◦ = pure)
    policy.py ◦       the restart budget
    rules.py ◦        which failures lead to a restart, and the pause before it
    roles.py ◦        ranks of workers, in the world and in their role
    environment.py ◦  the variables that a worker is given: a contract
    pace.py ◦         how fast workers make progress, and which stalled
    stalls.py ◦       a stall in words: which worker differs, and where all are
    outcome.py ◦      how it all ended
    restarts.py ◦     how often it started workers again, and why
    terms.py ◦        its states, and the numbers that it goes by
    effects.py ◦      what the machine wants done
    known.py ◦        the failures of a round, as far as they are known
    course.py ◦       how the agent goes on, and ends
    machine.py ◦      what the agent does when something happens
    inputs.py ◦       what may happen to it, as data
    story.py ◦        both in words
    job.py ◦          what an agent is to do, everything decided
    exchange.py       what agents of one round tell each other through its store
    run_writer.py     what an agent writes to the run's store
    health.py         a health endpoint that is alive in every phase
    task_thread.py    a thread that runs tasks
    vouching.py       which connections from other hosts are the job's
    torch_store.py    torch's store, at the master's address of a round
    attempt.py        the workers of one round on this node
    progress_watch.py samples of the workers' progress, and stalls
    report_reader.py  what the other nodes of a round report
    status.py         what it does, as people and probes are told
    narrator.py       tells what the agent does
    agent.py          the loop that performs what the machine says
"""

from __future__ import annotations
