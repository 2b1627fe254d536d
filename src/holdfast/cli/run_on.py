"""Where the nodes of `holdfast run` come from: flags that a launcher's word fills in, or hosts."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from holdfast import env
from holdfast.cli.arguments import one_line
from holdfast.cli.output import complain, say
from holdfast.cli.run_flags import Text, flags
from holdfast.errors import UsageError
from holdfast.ids import UNNAMED_RUN, new_token
from holdfast.launch.config import parse_signals
from holdfast.net.address import Address
from holdfast.net.secret import Secret, new_secret, read_secret_file
from holdfast.on import mpi, munge
from holdfast.on.choose import choose
from holdfast.on.handover import SecretServer, fetch
from holdfast.on.hostlist import Host, parse_host_file, parse_hosts
from holdfast.on.order import Order, encode_order, remote_shell, ssh_command
from holdfast.on.place import NodePlace, name_of, port_for
from holdfast.on.pmi import share
from holdfast.on.slurm import slurm_place
from holdfast.on.ssh import HostCommand, run_on_hosts

__all__ = ["fill_in", "run_by_ssh", "settled"]

# What says where nodes meet, or how many: then `auto` leaves it at that.
_MEETING = (
    *("nnodes", "standalone", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf"),
    *("node_rank", "master_addr", "master_port"),
)
_HOST_FILE_BYTES_MAX = 1 << 20
# What cannot be the same on every host, or is decided here.
_NOT_BY_SSH = ("standalone", "node_rank", "master_addr", "master_port", "local_addr")
_SECRETS = {"HOLDFAST_SECRET", "HOLDFAST_SECRET_FILE"}
_STAYS_HERE = ("on", "hosts", "host_file", "secret_file")


def fill_in(texts: Mapping[str, Text], place: NodePlace) -> dict[str, Text]:
    """Give the flags that were not given the values that a place has for them."""
    found, origin = dict(texts), f"what --on {place.engine} found"
    for dest, value in place.flags().items():
        if not texts[dest].place:
            found[dest] = Text(value, origin)
    conf = place.conf(found["rdzv_backend"].value, own_endpoint=not texts["rdzv_endpoint"].place)
    given = texts["rdzv_conf"]
    both = ",".join(filter(None, (conf, given.value)))  # of two values of a key the last one counts
    found["rdzv_conf"] = Text(both, given.place or origin) if both else given
    return found


@contextmanager
def settled(
    texts: Mapping[str, Text], variables: Mapping[str, str], *, dry: bool
) -> Iterator[tuple[Mapping[str, Text], Mapping[str, str]]]:
    """Give the flags and variables as the launcher of this node has it, if its word counts.

    The secret that comes by a launcher becomes that of this process; it may be a while until it is
    there. The first node hands it to the others until the exit.
    """
    given = any(texts[dest].place for dest in _MEETING) or any(
        name.startswith("PET_") and value for name, value in variables.items()
    )
    choice = choose(texts["on"].value, variables, meeting_given=given)
    if choice.advice:
        _tell(choice.advice)
    if not choice.engine:
        yield texts, variables
        return
    with ExitStack() as stack:
        by = _by_mpi if choice.engine == "mpi" else _by_slurm
        needs_secret = not (texts["secret_file"].place or _SECRETS & variables.keys())
        place, secret = by(variables, stack, needs_secret=needs_secret and not dry)
        _tell(
            f"--on {place.engine}: {place.told}: node {place.rank} of {place.nodes}, "
            f"run {place.run_id}"
        )
        if dry and needs_secret:
            variables = {**variables, "HOLDFAST_SECRET": "of a run that is only shown"}
        elif secret is not None:
            env.hold_secret(secret)
            variables = env.variables()
        yield fill_in(texts, place), variables


def _by_mpi(
    variables: Mapping[str, str], stack: ExitStack, *, needs_secret: bool
) -> tuple[NodePlace, str | None]:
    if not mpi.is_started_by_mpi(variables):
        raise UsageError(
            "argument --on: neither Open MPI's nor MPICH's mpirun has started this; "
            "write mpirun -n 2 holdfast run …"
        )
    place = mpi.open_mpi(variables)
    if place is not None:
        secret = mpi.open_mpi_secret(variables)
        if secret is None and needs_secret:
            raise UsageError("argument --on: this Open MPI gives no secret; add --secret-file FILE")
        return place, secret if needs_secret else None
    known = mpi.hydra(variables)
    host = known.host or os.uname().nodename
    shared, secret = share(known, host, new_secret().reveal())
    return mpi.place_by_hydra(known, shared), secret if needs_secret else None


def _by_slurm(
    variables: Mapping[str, str], stack: ExitStack, *, needs_secret: bool
) -> tuple[NodePlace, str | None]:
    place = slurm_place(variables)
    if not needs_secret or place.nodes == 1:
        return place, new_secret().reveal() if needs_secret else None
    if not munge.is_there():
        raise UsageError(
            "argument --on: no program munge, by which nodes could share a secret: make one, "
            "(umask 077; openssl rand -hex 32 > job.secret), on a folder that all nodes see, "
            "and add --secret-file job.secret"
        )
    where = Address(place.host, port_for(f"{place.run_id}/secret"))
    if place.rank:
        return place, fetch(where, place.run_id)
    secret = new_secret().reveal()
    stack.enter_context(SecretServer(where, place.run_id, secret))
    return place, secret


def run_by_ssh(
    texts: Mapping[str, Text], command: Sequence[str], variables: Mapping[str, str], *, dry: bool
) -> int:
    """Run the job on the hosts that the flags name; return the exit code."""
    hosts = _hosts(texts)
    _check(texts)
    run_id = texts["rdzv_id"].value
    if run_id == UNNAMED_RUN:
        run_id = name_of("ssh", new_token(random.SystemRandom(), 8))
    arguments = [_arguments(texts, hosts, rank, run_id, command) for rank in range(len(hosts))]
    shell = remote_shell(os.getcwd(), sys.executable, ["-m", "holdfast.cli.hosted"])
    if dry:
        told = zip(hosts, arguments, strict=True)
        shown = [{"host": host.target, "arguments": words} for host, words in told]
        say(json.dumps({"command": ssh_command("HOST", shell), "hosts": shown}, indent=2))
        return 0
    secret = _secret(texts).reveal()
    commands = [
        HostCommand(
            host.name,
            tuple(ssh_command(host.target, shell)),
            encode_order(Order(tuple(words), secret)),
        )
        for host, words in zip(hosts, arguments, strict=True)
    ]
    names = ", ".join(host.name for host in hosts)
    complain(f"holdfast: run {run_id} on {len(hosts)} hosts by ssh: {one_line(names)}")
    signals = parse_signals(texts["signals_to_handle"].value)
    fewest = _fewest(texts["nnodes"], len(hosts))
    return run_on_hosts(commands, fewest, variables, signals, _tell)


def _tell(line: str) -> None:
    complain(f"holdfast: {one_line(line)}")


def _hosts(texts: Mapping[str, Text]) -> tuple[Host, ...]:
    listed, file = texts["hosts"], texts["host_file"]
    if listed.place and file.place:
        raise UsageError("argument --hosts: not together with --host-file")
    try:
        if listed.place:
            return parse_hosts(listed.value)
        return parse_host_file(_text_of(Path(file.value)))
    except UsageError as error:
        where = listed.place or f"host file {file.value!r:.200}"
        raise UsageError(f"{where}: {error}") from None


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_HOST_FILE_BYTES_MAX + 1)
        text = data.decode()
    except OSError as error:
        raise UsageError(error.strerror or str(error)) from None
    except UnicodeError:
        raise UsageError("is not UTF-8") from None
    if len(data) > _HOST_FILE_BYTES_MAX:
        raise UsageError(f"is larger than {_HOST_FILE_BYTES_MAX} bytes")
    return text


def _check(texts: Mapping[str, Text]) -> None:
    """Refuse flags that make no sense for several hosts at once."""
    if texts["on"].value not in ("auto", "none"):
        raise UsageError(
            f"argument --on: {texts['on'].value!r:.40} not together with a list of hosts"
        )
    for dest in _NOT_BY_SSH:
        if texts[dest].place:
            name = dest.replace("_", "-")
            raise UsageError(f"argument --{name}: not together with a list of hosts")


def _arguments(
    texts: Mapping[str, Text], hosts: Sequence[Host], rank: int, run_id: str, command: Sequence[str]
) -> list[str]:
    """Return the arguments of `holdfast run` on one host."""
    place = NodePlace(
        engine="ssh",
        told="",
        run_id=run_id,
        nodes=len(hosts),
        rank=rank,
        host=hosts[0].name,
        port=port_for(run_id),
        hosts_store=rank == 0,
    )
    found = fill_in(texts, place)
    if (workers := hosts[rank].workers) is not None:
        found["nproc_per_node"] = Text(str(workers), "the list of hosts")
    words = ["--on=none"]
    for flag in flags():
        text = found[flag.dest]
        if text.place and flag.dest not in _STAYS_HERE:
            if flag.metavar:
                words.append(f"--{flag.name}={text.value}")
            elif text.value.lower() in {"1", "true"}:
                words.append(f"--{flag.name}")
    return [*words, *(command if command[:1] == ["--"] else ["--", *command])]


def _fewest(nnodes: Text, hosts: int) -> int:
    """Return how many hosts a round needs; what is wrong with the text the hosts say."""
    fewest = nnodes.value.partition(":")[0] if nnodes.place else str(hosts)
    return int(fewest) if fewest.isascii() and fewest.isdigit() and len(fewest) < 10 else hosts


def _secret(texts: Mapping[str, Text]) -> Secret:
    """Return the secret that the user has given, or a new one for this job."""
    environment = env.current()
    path = Path(texts["secret_file"].value) if texts["secret_file"].place else None
    path = path or environment.secret_file
    if path is not None:
        if not path.exists():
            raise UsageError(f"secret file {str(path)!r}: no such file")
        return read_secret_file(path)
    if environment.secret is not None:
        return Secret(str.encode(environment.secret))
    return new_secret()
