"""The rivals, as their manuals say, over Unix sockets where they can.

Those that carry bytes get pickled calls. A missing one is said to be missing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from bench.rpc_calls import answer, arrived, asked
from bench.rpc_subject import Caller, Function, Subject

__all__ = ["Grpc", "Ray", "Rpyc", "Zmq"]


class Grpc(Subject):
    """A method of bytes, without a schema. One channel for all threads, as is advised."""

    label = "gRPC and pickle"
    module = "grpc"
    megabytes_max = 64
    options = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))

    def serve(self, folder: Path, ready: Callable[[], None]) -> None:
        import grpc

        method = grpc.unary_unary_rpc_method_handler(lambda request, context: answer(request))
        handler = grpc.method_handlers_generic_handler("bench", {"call": method})
        server = grpc.server(ThreadPoolExecutor(16), [handler], options=self.options)
        server.add_insecure_port(f"unix:{folder}/socket")
        server.start()
        ready()
        server.wait_for_termination()

    def connect(self, folder: Path) -> None:
        import grpc

        self._channel = grpc.insecure_channel(f"unix:{folder}/socket", options=self.options)
        self._method = self._channel.unary_unary("/bench/call")

    def call(self, function: Function, *args: Any) -> Any:
        return arrived(self._method(asked(function, args)))

    def start(self, function: Function, *args: Any) -> Callable[[], object]:
        future = self._method.future(asked(function, args))
        return lambda: arrived(future.result())

    def close(self) -> None:
        self._channel.close()


class Ray(Subject):
    """An actor of a cluster of its own. It reads large arrays where they lie, and cannot write."""

    label = "Ray"
    module = "ray"

    def connect(self, folder: Path) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        import ray

        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            object_store_memory=2 << 30,
        )

        class Callee:
            def call(self, function: Function, *args: Any) -> Any:
                return function(*args)

        self._ray = ray
        self._actor = ray.remote(Callee).remote()

    def call(self, function: Function, *args: Any) -> Any:
        return self._ray.get(self._actor.call.remote(function, *args))

    def start(self, function: Function, *args: Any) -> Callable[[], object]:
        return partial(self._ray.get, self._actor.call.remote(function, *args))

    def close(self) -> None:
        self._ray.shutdown()


class Rpyc(Subject):
    """A service with one method of bytes. A connection and a thread of the callee per caller."""

    label = "rpyc and pickle"
    module = "rpyc"
    megabytes_max = 4  # its writes take time by the square of the size

    def serve(self, folder: Path, ready: Callable[[], None]) -> None:
        import rpyc
        from rpyc.utils.server import ThreadedServer

        class Service(rpyc.Service):  # type: ignore[misc]
            def exposed_call(self, request: bytes) -> bytes:
                return answer(request)

        self._compress_nothing()
        server = ThreadedServer(Service, socket_path=str(folder / "socket"))
        ready()
        server.start()

    def connect(self, folder: Path) -> None:
        self._compress_nothing()
        self._path = str(folder / "socket")

    def _compress_nothing(self) -> None:
        """Noise does not compress, and trying takes most of the time."""
        from rpyc.core.channel import Channel

        Channel.COMPRESSION_THRESHOLD = sys.maxsize

    def caller(self) -> Caller:
        return _RpycCaller(self._path)


class _RpycCaller:
    def __init__(self, path: str) -> None:
        import rpyc

        self._connection = rpyc.utils.factory.unix_connect(
            path, config={"sync_request_timeout": None}
        )
        self._call = self._connection.root.call
        self._start = rpyc.async_(self._call)

    def call(self, function: Function, *args: Any) -> Any:
        return arrived(self._call(asked(function, args)))

    def start(self, function: Function, *args: Any) -> Callable[[], object]:
        future = self._start(asked(function, args))
        return lambda: arrived(future.value)


class Zmq(Subject):
    """Requests by REQ, pipelined ones by DEALER; one loop of the callee answers all."""

    label = "pyzmq and pickle"
    module = "zmq"
    megabytes_max = 64

    def serve(self, folder: Path, ready: Callable[[], None]) -> None:
        import zmq

        replies = zmq.Context().socket(zmq.ROUTER)
        replies.bind(f"ipc://{folder}/socket")
        ready()
        while True:
            *way, request = replies.recv_multipart()
            replies.send_multipart([*way, answer(request)])

    def connect(self, folder: Path) -> None:
        import zmq

        self._context = zmq.Context()
        self._endpoint = f"ipc://{folder}/socket"

    def caller(self) -> Caller:
        import zmq

        return _ZmqCaller(*map(self._socket, (zmq.REQ, zmq.DEALER)))

    def _socket(self, kind: int) -> Any:
        socket = self._context.socket(kind)
        socket.connect(self._endpoint)
        return socket


class _ZmqCaller:
    def __init__(self, requests: Any, pipelined: Any) -> None:
        self._requests = requests
        self._pipelined = pipelined

    def call(self, function: Function, *args: Any) -> Any:
        self._requests.send(asked(function, args))
        return arrived(self._requests.recv())

    def start(self, function: Function, *args: Any) -> Callable[[], object]:
        self._pipelined.send(asked(function, args))
        return self._answered

    def _answered(self) -> object:
        return arrived(self._pipelined.recv())
