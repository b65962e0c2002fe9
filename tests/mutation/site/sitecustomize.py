"""Makes a process that a test starts run the changed module too, or note which lines it runs.

Python imports a module of this name before anything else, if it lies on PYTHONPATH.
"""

import os
import sys

if os.environ.get("MUTATION_OF_LEDGERBEAM"):
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))
    from tests.mutation.loading import begin

    begin()
