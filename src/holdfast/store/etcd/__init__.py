"""Stores in etcd, on its v3 API and on its v2 keys API.

Layout, in reading order
    http/            requests to a cluster and its replies, by either API
    watch.py         watches: events are followed, and never trusted alone
    followers.py     what watches and waits have in common, by either API
    v3/              the store on the v3 API
    v2/              the store on the v2 keys API
    guard.py         a script: ends a local etcd when its owner dies
    local_server.py  a real etcd, started and stopped from here
"""
