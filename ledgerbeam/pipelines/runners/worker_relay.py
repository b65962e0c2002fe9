"""Stands for a forked worker where a command is expected: ``python -I -S worker_relay.py SOCKET``.

It hands its environment, standard output and standard error to the fork server, and ends as the worker ends. It runs by
its path and imports little, so that it starts in some milliseconds.
"""

import json
import os
import socket
import sys


def main(name: str) -> int:
    """Ask the server at the abstract address ``name`` for a worker; return its exit status, 1 without a server."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(f"\0{name}")
        request = json.dumps(dict(os.environ)).encode()
        socket.send_fds(server, [len(request).to_bytes(8, "big")], [1, 2])
        server.sendall(request)
        with server.makefile("rb") as told:  # its process id, then its status: numbers as `forking` has them
            answer = told.read(16)
    status = int.from_bytes(answer[8:], "big", signed=True) if len(answer) == 16 else 1
    return status if status >= 0 else 128 - status  # as a shell tells of a signal


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
