"""SIMULATOR: the core under virtual time, with a made-up or recorded world around it.

``node`` plays the shell, ``world`` answers its orders, ``faults`` bends the answers, ``workload`` makes the requests,
``replay`` records and repeats a run, ``report`` counts what came out. Chance comes only from a ``random.Random`` the
caller has seeded, so that each run can be repeated.
"""

from swapd.sim.report import Report, table
from swapd.sim.run import Setup, simulate

__all__ = ["Report", "Setup", "simulate", "table"]
