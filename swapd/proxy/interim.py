"""Bounds the interim answers (1xx) of an engine: an answer's head must come after a few of them.

aiohttp's client skips interim answers as fast as they come, in one turn of the event loop if enough have arrived: an
engine that sends nothing else would hold up every other connection. So they are counted where aiohttp's protocol
hands them on, and what arrives is parsed in small pieces while the head is awaited, so that one read is bounded too.
For the same reason an answer that nobody asked for ends its connection.
"""

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from typing_extensions import override

_MOST: Final = 16
_SLICE: Final = 4 << 10


def connector(**options: Any) -> aiohttp.TCPConnector:
    """Return a connector whose connections take at most sixteen interim answers to a request."""
    return _Connector(**options)


class _Connector(aiohttp.TCPConnector):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        bounded: Callable[..., ResponseHandler] = _Bounded
        self._factory = functools.partial(bounded, loop=self._loop)


class _Bounded(ResponseHandler):
    """One connection to an engine."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._interim = 0
        self._awaits_head = False
        self._refused = False

    @override
    def set_response_params(self, **params: Any) -> None:
        # called once for each request
        self._interim, self._awaits_head = 0, True
        super().set_response_params(**params)

    @override
    def data_received(self, data: bytes) -> None:
        while self._awaits_head and len(data) > _SLICE:
            super().data_received(data[:_SLICE])
            data = data[_SLICE:]
        if not self._refused:
            super().data_received(data)

    @override
    def feed_data(self, data: Any, size: int = 0) -> None:
        if self._refused:
            return
        status = data[0].code
        if not self._awaits_head:
            self._refuse("an answer that nobody asked for")
        elif status >= 200 or status == 101:
            self._awaits_head = False
            super().feed_data(data, size)
        elif self._interim == _MOST:
            self._refuse(f"more than {_MOST} interim answers")
        else:
            self._interim += 1
            super().feed_data(data, size)

    def _refuse(self, why: str) -> None:
        self._refused, self._awaits_head = True, False
        self.set_exception(HttpProcessingError(message=why))
        if self.transport is not None:
            self.transport.abort()
