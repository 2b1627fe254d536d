"""Which workers a job has, where each is, and which are gone.

Layout, in reading order
    entry.py       where a worker is, as bytes
    world_size.py  how many workers a world has
    refusals.py    what workers of worlds of other sizes are told
    directory.py   who is where, kept by leases in the store
"""
