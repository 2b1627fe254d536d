"""Measurements, side by side with peers in one run. `make bench` runs them all.

Layout, in reading order
    __main__.py  which measurements there are; runs them, prints tables, writes JSON
    aims.py      every row that we aim at, and its bound
    judge.py     which aims a run meets
    machine.py   what the machine has, and what a row needs
    growth.py    how figures grow with the work
    charts.py    a run as SVG
    progress.py  how far a run has come
    ranks.py     forked processes that do the same at once
    subjects.py  what is measured: our backends, and torch's store where torch is installed
    client.py    a process of clients that do one operation over and over
    listener.py  a process that waits to be woken
    stores.py    operations a second, idle clients, wake-up latency, memory
    rendezvous.py  time to join, operations a node, re-formation after a kill
    launch.py, jobs.py, recovery.py, restart.py, tee.py  the launcher: start, idle agents,
                 recovery, restarts, output
    process_groups.py  torch's process groups over a store
    rpc.py       RPC beside rivals; rpc_*.py are its parts
    imports.py   what importing costs
    table.py     figures as text

Every figure comes from processes of their own, so that no subject shares an interpreter lock with
another. Subjects that are compared take turns. A timing is never asserted in a test.
"""
