"""The store on etcd's v2 keys API.

Layout, in reading order
    api.py     the v2 keys API
    ops.py     what operations become in it
    store.py   the store
"""

from __future__ import annotations
