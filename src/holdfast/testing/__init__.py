"""Tools for tests of holdfast and of what is built on it. Nothing in the product imports them.

In reading order:
    clock.py       a clock that moves only when the test moves it
    leaks.py       what was left behind: threads, open files, processes, temporary files
    transcript.py  stories of a machine as text files that are replayed and rewritten
    plugin.py      the pytest plugin: leak checks, --rewrite, --sim-seeds
    network.py     a simulated network with faults: one seed, one heap of events, virtual time
    checkers.py    are the histories of clients linearizable? do watches and leases keep word?
    storesim.py    store clients and a server in that network, checked over many seeds
"""
