"""User code: the functions and classes that users give to jobs.

- Identity: `functions` finds the parts of a function, `modules` the files that it imports, `analysis` reads both from
  code, `watched_files` covers other files. A change of any part makes another job.
- Use: `objects` checks signatures and values, `loading` imports, `instances` builds and closes objects in workers.
- Protection: `guards` against exits and forks, `errors` turns any exception into a bounded message.
"""
