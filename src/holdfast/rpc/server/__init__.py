"""The callee's side: accepts connections, runs requests, and replies.

Layout, in reading order (◦ = pure)
    dedup.py ◦       a call that arrives again runs once
    reply_writer.py  replies of one connection, from any thread
    listener.py      accepts, reads and runs
    event_loop.py    coroutines
    dispatcher.py    what each kind of request does
"""
