"""Tools for tests of holdfast and of what is built on it. Nothing in the product imports them.

In reading order:
    clock.py       a clock that moves only when the test moves it
    leaks.py       what was left behind: threads, open files, processes, temporary files
    transcript.py  stories of a machine as text files that are replayed and rewritten
    plugin.py      the pytest plugin: leak checks, --rewrite, --sim-seeds
    heeding.py     signals that a process inherits as ignored, and that tests send
    faultplan.py   what will go wrong in a simulated run, as data
    network.py     a simulated network with faults: one seed, one heap of events, virtual time
    checkers.py    are the histories of clients linearizable? do watches and leases keep word?
    storeactors.py a store's server and clients as programs of that network
    storeusers.py  what the users of these clients do
    seeds.py       what a simulation needs around its seeds: reports, tallies, a command line
    storesim.py    many of them together, judged over many seeds
    clusterjudge.py  do the nodes of a run keep their word, at every step?
    clusternodes.py  these nodes as programs of that network, with clocks that go wrong
    cluster.py     many of them together, judged over many seeds
    agentjudge.py  do the agents of a job keep their word, at every step?
    agentworkers.py  workers that are played: they fail, end late, or cannot be killed
    agentnodes.py  agents on such nodes: the product's machine over a simulated rendezvous
    agentsim.py    many of them together, judged over many seeds
    chaosplan.py   kills of workers and agents of real jobs, drawn from a seed
    chaosworker.py a worker to be killed, which says where it is
    chaosagent.py  an agent to be killed, which can be stopped in any phase of its life
    chaosrig.py    the agents of one job, what they say, and a census of what they leave
    chaosjudge.py  did the job keep its word?
    chaos.py       many of these jobs, by a command
    rrefjudge.py   are remote references counted right, at every step?
    rrefplan.py    what a seed decides for them
    lives.py       simulated workers of RPC, life after life, and the network between them
    rrefworker.py  one simulated worker that makes, passes on and drops them
    rrefsim.py     their counting between simulated workers, judged over many seeds
    onceworker.py  one simulated worker that makes calls, repeats them, and runs those of others
    oncesim.py     repeated calls that run once, judged over many seeds
    rpcworld.py    a test in several real workers, or beside them, with faults if wanted
    rpcfixture.py  the pytest plugin that gives tests such workers, and nothing else
    rpcsoak.py     many calls under faults, audited: each runs once, none is mixed up
"""
