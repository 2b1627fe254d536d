"""What travels between workers: messages, their bytes, and the connections that carry them.

Layout, in reading order (◦ = pure)
    worker_info.py ◦      workers by name and number
    messages.py ◦         the kinds of messages
    codec.py ◦            messages as bytes
    tickets.py ◦          references as they travel
    acknowledgement.py ◦  which replies the callee may forget
    hello.py ◦            the first messages of a connection
    spin.py ◦             when to poll for a moment before sleeping
    peer_memory.py        large buffers between two processes of one machine, in one copy
    parts.py              messages as parts that are sent together
    connection.py         one connection
"""
