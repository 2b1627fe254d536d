"""The callee's side: accepts connections, runs requests, and replies.

Layout, in reading order (◦ = pure)
    dedup.py ◦       a call that arrives again runs once
    durations.py ◦   which functions take long
    reply_writer.py  replies of one connection, from any thread
    worker_pool.py   the threads that serve connections
    parking.py       idle connections, which need no thread
    serving.py       one connection: reads, runs, replies
    listener.py      accepts connections, and admits workers of the job
    event_loop.py    coroutines
    dispatcher.py    what each kind of request does
"""
