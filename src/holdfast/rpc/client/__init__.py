"""The caller's side: calls to peers, their deadlines, retries and replies.

Layout, in reading order (◦ = pure)
    retry_policy.py ◦     how often to try again, and after how long
    deadlines.py          the deadline that nested calls inherit
    blocking.py           what a thread releases before it blocks
    future.py             a value to come
    replies.py            callbacks that receive the reply to a call
    calls.py ◦            open calls, their limits and deadlines; retries; acknowledgements
    unsent.py ◦           what is still sent of a call that was given up
    contact.py            where a worker can be reached
    transport.py          the seam at which messages can be changed
    background_reader.py  reads pipes on which no thread waits, and keeps deadlines
    pipe.py               many calls at once over one connection
    connecting.py         calls that wait for a pipe
    scheduler.py          tasks to run later, on one thread
    dialer.py             opens connections to a worker
    peer.py               the connections to one worker
    retrying.py           requests that are retried until a reply comes
"""
