"""Says that something below the cache's folder may have changed, soon after it did and from time to time anyway.

The folder itself and the folders of the copies are watched, without what lies below ``.swapd``: a fetch writes there
all the time. File systems that send no events are looked at when the period is over.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final

from watchfiles import awatch

_RETRY_S: Final = 1.0
_STEP_MS: Final = 200


async def signs(
    folders: Callable[[], tuple[Path, ...]], changed: asyncio.Event, *, period_s: float
) -> AsyncIterator[None]:
    """Yield after each burst of changes and once per period; ``changed``: there are other folders to watch now.

    Never ends and never raises by itself.
    """
    loop = asyncio.get_running_loop()
    while True:
        changed.clear()
        watched = [folder for folder in folders() if folder.is_dir()]
        until = loop.time() + period_s
        try:
            if watched:
                async with aclosing(
                    awatch(
                        *watched,
                        watch_filter=None,
                        stop_event=changed,
                        recursive=False,
                        step=_STEP_MS,
                        rust_timeout=max(1, round(period_s * 1000)),
                        yield_on_timeout=True,
                    )
                ) as events:
                    async for _ in events:
                        yield
        except (OSError, RuntimeError):
            yield  # a folder went away while it was about to be watched
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(_RETRY_S, until - loop.time())):
                    await changed.wait()
        if not watched:
            yield
            await asyncio.sleep(_RETRY_S)
