"""The flags of `holdfast run`, as data: their names, defaults and variables.

All flags of torchrun are here, with `-` and with `_` between their words, and each has the variable
PET_<NAME>. What is said on the command line beats the variable, which beats the default. An empty
variable counts as unset, since operators set them so.

Everything stays text here, so that asking for help costs no more than this file.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from holdfast.cli.arguments import Parser
from holdfast.records import dataclass

__all__ = ["GROUPS", "Flag", "Text", "add_flags", "flags", "read_flags", "unknown_variables"]

_PREFIX = "PET_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag. Without a `metavar` it is a switch and takes no value."""

    name: str
    help: str
    metavar: str = ""
    default: str = ""
    short: str = ""
    also: tuple[str, ...] = ()
    """Variables that give its value as well as PET_<NAME> does."""
    bare: bool = False
    """Whether no variable gives its value."""
    optional: bool = False
    """Whether it may stand alone; a value comes after = then, never as a word of its own."""

    @property
    def dest(self) -> str:
        """Its name in Python."""
        return self.name.replace("-", "_")

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that give its value, the first one first."""
        return () if self.bare else (f"{_PREFIX}{self.dest.upper()}", *self.also)


class Text(NamedTuple):
    """A value as it was given, and where; an empty place means that it is the default."""

    value: str
    place: str = ""


GROUPS: tuple[tuple[str, tuple[Flag, ...]], ...] = (
    (
        "how many",
        (
            Flag(
                name="nnodes",
                metavar="N|MIN:MAX",
                default="1:1",
                help="number of nodes, or the fewest and the most that the job may have",
            ),
            Flag(
                name="nproc-per-node",
                metavar="N",
                default="1",
                also=("PET_N_PROC_PER_NODE",),
                help="workers on this node; cpu, gpu, xpu: one for each; auto: by what is there",
            ),
        ),
    ),
    (
        "where nodes meet",
        (
            Flag(name="standalone", help="a job of this node alone; the next flags have no effect"),
            Flag(
                name="rdzv-backend",
                metavar="NAME",
                default="static",
                help="static, c10d, etcd, etcd-v2, file, or one of an installed package",
            ),
            Flag(name="rdzv-endpoint", metavar="HOST[:PORT][,…]", help="where the backend is"),
            Flag(
                name="rdzv-id", metavar="ID", default="none", help="name of the job, on every node"
            ),
            Flag(name="rdzv-conf", metavar="K=V,...", help="options of the backend"),
            Flag(
                name="secret-file",
                metavar="FILE",
                bare=True,
                help="the job's secret, the same on every node (else: $HOLDFAST_SECRET_FILE)",
            ),
            Flag(name="node-rank", metavar="N", default="0", help="static: number of this node"),
            Flag(
                name="master-addr",
                metavar="HOST",
                default="127.0.0.1",
                help="static: the node with number 0",
            ),
            Flag(name="master-port", metavar="PORT", help="static: a free port there (29500)"),
            Flag(name="local-addr", metavar="HOST", help="how other nodes reach this one"),
        ),
    ),
    (
        "where the nodes come from",
        (
            Flag(
                name="on",
                metavar="ENGINE",
                bare=True,
                default="auto",
                help="slurm, mpi: what started this node says all of the above; none; auto",
            ),
            Flag(
                name="hosts",
                metavar="HOST[:WORKERS],...",
                bare=True,
                help="run on these hosts, by ssh from here",
            ),
            Flag(
                name="host-file",
                metavar="FILE",
                bare=True,
                help="the same; a file with a host on each line",
            ),
        ),
    ),
    (
        "what runs",
        (
            Flag(name="module", short="-m", help="SCRIPT is a module, as for python -m"),
            Flag(name="no-python", help="SCRIPT is a program of any kind"),
            Flag(name="run-path", help="SCRIPT is a Python file; overrides the two flags above"),
            Flag(name="role", metavar="NAME", default="default", help="role of the workers"),
            Flag(
                name="start-method",
                metavar="NAME",
                default="spawn",
                help="spawn, fork or forkserver; applies to functions, not to a SCRIPT",
            ),
            Flag(
                name="warm",
                metavar="MODULE,...",
                bare=True,
                help="keep workers ready that have imported these, for quick restarts",
            ),
            Flag(name="virtual-local-rank", help="one device for each worker, as LOCAL_RANK 0"),
            Flag(
                name="numa-binding",
                metavar="MODE",
                bare=True,
                help="run workers near their GPUs: node, socket, exclusive, core-complex",
            ),
        ),
    ),
    (
        "failures and shutdown",
        (
            Flag(
                name="max-restarts",
                metavar="N",
                default="0",
                help="how many failures of the job lead to a restart",
            ),
            Flag(
                name="restarts",
                metavar="N[/TIME]",
                bare=True,
                help="the same; 3/60s: three within any 60 seconds (s, m, h)",
            ),
            Flag(
                name="restart-on",
                metavar="CAUSE,...",
                bare=True,
                help="restart only after these: exit code, SIGNAME, exception class, oom, stall",
            ),
            Flag(
                name="no-restart-on",
                metavar="CAUSE,...",
                bare=True,
                help="give up after these; they beat --restart-on",
            ),
            Flag(
                name="restart-backoff",
                metavar="TIME[:MOST]",
                bare=True,
                help="pause before a restart, twice as long after each failure, up to MOST (60s)",
            ),
            Flag(
                name="max-same-failures",
                metavar="N",
                bare=True,
                help="give up, with exit code 80, when a failure comes N times at the same step",
            ),
            Flag(
                name="stall-after",
                metavar="TIME",
                bare=True,
                help="a worker without progress for so long, such as 10m, has failed: stall",
            ),
            Flag(
                name="signals-to-handle",
                metavar="NAMES",
                default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
                help="signals that are passed on to the workers, and end the job on this node",
            ),
            Flag(
                name="shutdown-timeout",
                metavar="S",
                help="seconds that a worker may take to end before it is killed (30)",
            ),
            Flag(
                name="exit-barrier-timeout",
                metavar="S",
                bare=True,
                default="300",
                help="seconds that a node waits for the others when its workers are done",
            ),
            Flag(
                name="monitor-interval",
                metavar="S",
                default="0.1",
                help="seconds between checks for exiting workers; no more than 0.5 is used",
            ),
            Flag(
                name="report",
                metavar="FILE",
                bare=True,
                help="write a failure to this file, as JSON",
            ),
        ),
    ),
    (
        "watching the job",
        (
            Flag(
                name="metrics-port",
                metavar="[HOST:]PORT",
                bare=True,
                help="serve metrics for Prometheus at /metrics; of loopback without a HOST",
            ),
            Flag(
                name="page",
                metavar="[HOST:]PORT",
                bare=True,
                optional=True,
                help="serve a page about the job, and print its link; --page=PORT for a fixed one",
            ),
        ),
    ),
    (
        "output of the workers (STREAMS: 1 stdout, 2 stderr, 3 both; 0:3,1:1 by local rank)",
        (
            Flag(name="log-dir", metavar="DIR", help="where log files go (a temporary folder)"),
            Flag(
                name="redirects",
                short="-r",
                metavar="STREAMS",
                default="0",
                help="streams that go to files",
            ),
            Flag(
                name="tee",
                short="-t",
                metavar="STREAMS",
                default="0",
                help="streams that go to files and, prefixed, to the console",
            ),
            Flag(
                name="log-line-prefix-template",
                metavar="TEXT",
                also=("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",),
                help="the prefix, with ${role_name} ${local_rank} ${rank} ${host} ${attempt}",
            ),
            Flag(
                name="local-ranks-filter",
                metavar="RANKS",
                help="show on the console only these local ranks, such as 0,1",
            ),
            Flag(
                name="duplicate-stdout-filters",
                metavar="TEXTS",
                help="copy lines that contain one of these (a,b) to one file for all workers",
            ),
            Flag(name="duplicate-stderr-filters", metavar="TEXTS", help="the same for stderr"),
            Flag(
                name="event-log-handler",
                metavar="NAME",
                default="null",
                help="where events go: null or console",
            ),
            Flag(
                name="logs-specs",
                metavar="NAME",
                bare=True,
                default="default",
                help="only the default exists",
            ),
        ),
    ),
)


def flags() -> Iterator[Flag]:
    """Return every flag."""
    return (flag for _, group in GROUPS for flag in group)


def add_flags(parser: Parser) -> None:
    """Add every flag; one that is not given is None."""
    for title, group in GROUPS:
        part = parser.add_argument_group(title)
        for flag in group:
            names = [flag.short, f"--{flag.name}"] if flag.short else [f"--{flag.name}"]
            shown = flag.help.replace("%", "%%")
            if flag.default and flag.metavar:
                shown += f" (default: {flag.default})"
            _add(part, flag, names, shown)
            if flag.optional:
                parser.optional_values.add(f"--{flag.name}")
            if "_" in flag.dest:  # the other spelling works too, and needs no line of its own
                _add(part, flag, [f"--{flag.dest}"], argparse.SUPPRESS)


def _add(part: argparse._ArgumentGroup, flag: Flag, names: list[str], shown: str) -> None:
    if flag.metavar:
        part.add_argument(*names, dest=flag.dest, metavar=flag.metavar, help=shown)
    else:
        part.add_argument(*names, dest=flag.dest, action="store_const", const="1", help=shown)


def read_flags(given: argparse.Namespace, variables: Mapping[str, str]) -> dict[str, Text]:
    """Return the text of every flag, by its name in Python."""
    return {flag.dest: _read(flag, getattr(given, flag.dest), variables) for flag in flags()}


def _read(flag: Flag, argument: str | None, variables: Mapping[str, str]) -> Text:
    if argument is not None:
        return Text(argument, f"argument --{flag.name}")
    for name in flag.variables:
        if variables.get(name):
            return Text(variables[name], f"environment variable {name}")
    return Text(flag.default)


def unknown_variables(variables: Mapping[str, str]) -> Iterator[str]:
    """Say of each variable that looks like one of torchrun's, and is none, what was meant."""
    known = [name for flag in flags() for name in flag.variables]
    for name in sorted(variables):
        if name.startswith(_PREFIX) and name not in known and variables[name]:
            # Compared without the prefix, which would make everything look alike.
            bare = [other.removeprefix(_PREFIX) for other in known]
            near = difflib.get_close_matches(name.removeprefix(_PREFIX), bare, n=1)
            hint = f"; did you mean {_PREFIX}{near[0]}?" if near else ""
            yield f"environment variable {name}: unknown, and ignored{hint}"
