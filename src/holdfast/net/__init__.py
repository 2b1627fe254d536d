"""Sockets, frames and trust: everything between two processes, and nothing about what they say.

Layout, in reading order:

    address.py      addresses and endpoints as text, and back
    frames.py       a length, then that many bytes, with a cap
    auth.py         the handshake: both sides prove that they hold the same secret
    credentials.py  which user is at the other end of a Unix socket
    secret.py       where the secret comes from, and that it shows nowhere
    transport.py    what carries frames between two peers that trust each other
    spin.py         when to poll for a moment before sleeping
    tcp.py          the client's side: connecting, each step named when it fails
    towards.py      the address of this machine, as its peers see it
    tls.py          TLS to servers that are not ours
    owner.py        which user owns a TCP socket of this host
    poller.py       waiting for the sockets of one thread
    reactor.py      the server's side: one thread that serves thousands of sockets
    unauthenticated.py  connections that have proved nothing yet, and which of them is evicted
    descriptors.py  how many descriptors this process may have open
    http_messages.py  requests and replies of HTTP, as bytes
    http_server.py  a small server of HTTP

`address`, `frames`, `auth`, `spin`, `unauthenticated` and `http_messages` are pure: they decide,
and perform nothing.
"""
