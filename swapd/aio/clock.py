"""Reads the one clock the daemon decides by.

Everything takes ``now`` as an argument, so that tests and the simulator can bring their own; only the composition of
the daemon names this function.
"""

import time

monotonic_now = time.monotonic_ns
"""Returns nanoseconds since an arbitrary start; never goes back, not even when the wall clock is set."""
