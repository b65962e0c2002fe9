"""The worker command that FnApiRunner expects: ``python -I -S worker_relay.py SOCKET``.

It sends its environment, standard output and standard error to the fork server, and exits with the status of the forked
worker. It runs by path and imports little, so that it starts in some milliseconds.
"""

import json
import os
import socket
import sys


def main(name: str) -> int:
    """Request a worker from the server at the abstract Unix socket ``name``; return its status, 1 if no worker ran."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(f"\0{name}")
        request = json.dumps(dict(os.environ)).encode()
        socket.send_fds(server, [len(request).to_bytes(8, "big")], [1, 2])
        server.sendall(request)
        with server.makefile("rb") as told:  # process id, then status, encoded as in `forking`
            answer = told.read(16)
    status = int.from_bytes(answer[8:], "big", signed=True) if len(answer) == 16 else 1
    return status if status >= 0 else 128 - status  # the convention of shells for signals


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
