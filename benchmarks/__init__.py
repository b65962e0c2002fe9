"""Speed against peers and physical limits, as ratios of one run on one machine: `make bench`.

    scripts/bench.sh [--small] [--long] [--full] [TABLE ...]

Every ratio comes from runs that alternate, ours and theirs, in one process of this package; peers run in their own
environment (`scripts/peers.sh`) and time themselves, imports excluded. A table that falls short says so.
"""

from __future__ import annotations
