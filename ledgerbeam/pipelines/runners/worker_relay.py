"""Stands for a forked worker where a command is expected: ``python -I -S worker_relay.py SOCKET``.

It hands its environment, standard output and standard error to the fork server, and ends as the worker ends. It runs by
its path and imports little, so that it starts in some milliseconds.
"""

import json
import os
import socket
import sys

__all__ = ["main"]


def main(name: str) -> int:
    """Ask the server at the abstract address ``name`` for a worker; return its exit status, 1 without a server."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(f"\0{name}")
        environment = json.dumps(dict(os.environ)).encode()
        socket.send_fds(server, [len(environment).to_bytes(8, "big")], [1, 2])
        server.sendall(environment)
        status = server.recv(1)
    return status[0] if status else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
