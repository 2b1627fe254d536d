"""Tools for tests of what is built on holdfast. Nothing in the product imports them.

What tests holdfast itself, simulators and their judges, is in tests/ of the repository.

In reading order:
    clock.py       a clock that moves only when the test moves it
    leaks.py       what was left behind: threads, open files, processes, temporary files
    transcript.py  stories of a machine as text files that are replayed and rewritten
    plugin.py      the pytest plugin: leak checks, --rewrite, --sim-seeds
    faultplan.py   what will go wrong in a simulated run, as data
    network.py     a simulated network with faults: one seed, one heap of events, virtual time
    checkers.py    are the histories of clients linearizable? do watches and leases keep word?
    rpcworld.py    a test in several real workers, or beside them, with faults if wanted
    rpcfixture.py  the pytest plugin that gives tests such workers, and nothing else
"""
