"""What travels between workers: messages, their bytes, and the connections that carry them.

Layout, in reading order (◦ = pure)
    worker_info.py ◦      workers by name and number
    messages.py ◦         the kinds of messages
    codec.py ◦            messages as bytes, and as parts that are sent together
    tickets.py ◦          references as they travel
    acknowledgement.py ◦  which replies the callee may forget
    hello.py ◦            the first messages of a connection
    memory.py             the memory that received buffers land in
    peer_memory.py        large buffers between two processes of one machine, in one copy
    connection.py         one connection
"""
