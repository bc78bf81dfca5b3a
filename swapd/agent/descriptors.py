"""Raises the limit on open files: each stream takes two, and the usual soft limit is made for programs with few."""

import resource

import structlog

_FEW = 4096
_ENOUGH = 65_536
"""Engines inherit the limit, and some programs visit every possible descriptor: no more than this."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("swapd")


def raise_limit() -> None:
    """Take as many descriptors as are useful and the system allows, and say so when those are few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    limit = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if max(limit, soft) < _FEW:
        _log.warning(
            "few_descriptors", limit=max(limit, soft), advice="raise the hard limit on open files (ulimit -Hn)"
        )
