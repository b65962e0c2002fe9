"""User code: the functions and classes that users give to jobs.

- Identity: `functions` finds the parts of a function, `modules` the files that it imports. A changed part makes another
  job.
- Use: `loading` imports, `objects` checks signatures and values, and builds and closes objects in workers.
- Protection: `guards` against exits and forks, and against exceptions of any kind.
"""
