"""Which workers a job has, where each is, and which are gone.

Layout, in reading order
    entry.py       where a worker is, as bytes
    world_size.py  how many workers a world has
    refusals.py    messages to workers of worlds of other sizes
    directory.py   which worker is where, kept by leases in the store
"""
