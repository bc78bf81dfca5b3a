"""How hard Hypothesis tries: ``ci`` is the same every time, ``dev`` is short and random, ``nightly`` is long.

Choose with ``HYPOTHESIS_PROFILE``; without it, ``ci``.
"""

import os

from hypothesis import HealthCheck, settings

_QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)

settings.register_profile(
    "ci",
    derandomize=True,
    max_examples=80,
    stateful_step_count=60,
    deadline=None,
    database=None,
    suppress_health_check=_QUIET,
)
settings.register_profile(
    "dev", max_examples=60, stateful_step_count=40, deadline=None, database=None, suppress_health_check=_QUIET
)
settings.register_profile(
    "nightly", max_examples=4_000, stateful_step_count=150, deadline=None, database=None, suppress_health_check=_QUIET
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
