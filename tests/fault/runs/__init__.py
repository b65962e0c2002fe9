"""A deterministic simulation of whole runs: a job's launchers and workers, and what changes under them.

    python -m tests.fault.runs --seed S [--steps N]       prints the schedule of one seed
    python -m tests.fault.runs --seed S --seeds COUNT     runs many, and prints those that fail

Everything is the library's but Beam's runner: `cli.main` lists, skips, watches and tidies up; the DoFns of the job's
own graph plan, read, process, publish and commit. Between any two calls inside of them sources change, launchers and
workers die or let others run, clocks jump, functions raise. Nothing but the seed decides what happens.
"""
