"""Tables of speed, as ratios to other tools (peers) and to physical limits, of one run on one machine: `make bench`.

    scripts/bench.sh [--small] [--long] [--full] [TABLE ...]

For every ratio, runs of ledgerbeam and of a peer alternate. One process of this package controls them. Peers run in
their own environment (`scripts/peers.sh`), and measure their own time, without imports. A row below its target is
marked.
"""

from __future__ import annotations
