"""Real servers for tests and for people: S3, emulators of GCS, Azure and Dataflow, engines, hosts and their network.

Each is a context manager that yields a running server and leaves nothing behind, also when its process is killed.
It is a package of the tests, because they are its first user and mypy, ruff and pytest reach it there;
`python -m tests.servers` is the same for people. `pins` says what is run, `make` brings it into `.cache/`.
"""
