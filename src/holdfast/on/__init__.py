"""Jobs on machines that another program gives: what it says becomes the settings of a run.

Layout, in reading order (◦ = pure)
    place.py ◦      a node's place in a job, whatever says it, as flags of `holdfast run`
    hostlist.py ◦   lists of hosts, as people and launchers write them
    order.py ◦      what a host is told over the standard input of its ssh
    lifeline.py     the host's end of that connection
    hosts_end.py ◦  how a job on several hosts ends
    ssh.py          run a command on several hosts, and bring back what they print
    mpi.py ◦        the word of MPI's launchers
    pmi.py          ask MPICH's launcher
    slurm.py ◦      the word of Slurm
    choose.py ◦     which launcher's word counts
    munge.py        text that only one user can read, on any host of a cluster
    handover.py     hand the job's secret to other nodes against such text
"""

from __future__ import annotations
