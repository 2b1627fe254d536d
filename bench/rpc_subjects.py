"""The subjects of the RPC measurements by name, in the order in which they take turns."""

from __future__ import annotations

from bench.rpc_limits import Copies, RawBytes, RawPickle
from bench.rpc_rivals import Grpc, Ray, Rpyc, Zmq
from bench.rpc_subject import Subject
from bench.rpc_workers import Facade, Holdfast, Torch

__all__ = ["SUBJECTS"]

SUBJECTS: dict[str, type[Subject]] = {
    "bytes": RawBytes,
    "pickle": RawPickle,
    "copies": Copies,
    "holdfast": Holdfast,
    "facade": Facade,
    "torch": Torch,
    "grpc": Grpc,
    "ray": Ray,
    "rpyc": Rpyc,
    "zmq": Zmq,
}
