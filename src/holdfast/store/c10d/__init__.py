"""The protocol of torch's TCPStore, as server and as client, without torch.

Layout, in reading order (◦ = pure)
    messages.py ◦  requests, as data
    wire.py ◦      requests and replies as bytes
    space.py ◦     what requests mean
    server.py      the server for torch's clients
    line.py        connections to a store that torch hosts
    client.py      such a store, used as one of ours
"""
