"""A program that hosts both of torch's store servers, and calls their methods on demand.

Prints the ports of the newer and of the older server as one JSON list. Then reads lines of JSON,
[server, method, arguments...], and answers each with the result, or {"error": kind}. Ends when its
input does.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def plain(result: Any) -> Any:
    if isinstance(result, bytes):
        return result.decode("latin1")
    if isinstance(result, list):
        return [plain(item) for item in result]
    return result


def main() -> None:
    from torch.distributed import TCPStore

    servers = [
        TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=newer)
        for newer in (True, False)
    ]
    print(json.dumps([server.port for server in servers]), flush=True)
    for line in sys.stdin:
        which, method, *arguments = json.loads(line)
        try:
            answer = plain(getattr(servers[which], method)(*arguments))
        except Exception as error:
            answer = {"error": type(error).__name__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
