"""Asks a server whether it is up; each question has its own time limit.

While a server loads, refusals and silence are normal: whoever waits here is ended by the process's exit or by the
core's deadline, never by a count.
"""

import asyncio

from swapd.aio.backoff import Backoff
from swapd.core.ids import SECOND
from swapd.engines.base import ReadinessProbe
from swapd.instances.http import NotAskedError, UnreachableError, request

#: a load of a fifth of a second must not cost a second more: this often in the first second …
_EAGER_S = 0.005
_EAGER_FOR_S = 1.0
#: … then less and less
_PATIENT_S = Backoff(first=0.01, cap=1.0, factor=1.25)


async def problem(host: str, port: int, probe: ReadinessProbe) -> str | None:
    """Probe once; ``None`` is up, else what is wrong, in words that follow the model's name.

    Raises ``NotAskedError`` when this process could not even ask.
    """
    limit_s = probe.timeout / SECOND
    try:
        async with asyncio.timeout(limit_s):
            reply = await request(host, port, method="GET", path=probe.path)
    except TimeoutError:
        return f"did not answer GET {probe.path} within {limit_s:g} s"
    except NotAskedError:
        raise
    except UnreachableError as error:
        return f"gave no answer to GET {probe.path}: {error}"
    if reply.status in probe.accepted:
        return None
    return f"answered GET {probe.path} with {reply.status}"


async def _is_up(host: str, port: int, probe: ReadinessProbe) -> bool:
    try:
        return await problem(host, port, probe) is None
    except NotAskedError:
        return False


async def wait_until_up(host: str, port: int, probe: ReadinessProbe) -> None:
    """Return as soon as the server is up; never gives up."""
    loop = asyncio.get_running_loop()
    eager_until = loop.time() + _EAGER_FOR_S
    repetition = 0
    while not await _is_up(host, port, probe):
        if loop.time() < eager_until:
            await asyncio.sleep(_EAGER_S)
        else:
            await asyncio.sleep(_PATIENT_S.delay(repetition))
            repetition += 1
