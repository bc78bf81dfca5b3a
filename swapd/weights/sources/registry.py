"""Finds the source for a URL by its scheme. A source is one file and one line here."""

from collections.abc import Callable, Mapping
from typing import Final

from swapd.weights.sources.base import Source, SourceError
from swapd.weights.sources.http import HttpSource
from swapd.weights.sources.hub import HubSource
from swapd.weights.sources.local import LocalSource
from swapd.weights.sources.store import StoreSource

SOURCES: Final[Mapping[str, Callable[[str, float], Source]]] = {
    "file": lambda url, _: LocalSource(url),
    "http": lambda url, timeout_s: HttpSource(url, timeout_s=timeout_s),
    "https": lambda url, timeout_s: HttpSource(url, timeout_s=timeout_s),
    "hf": lambda url, timeout_s: HubSource(url, timeout_s=timeout_s),
    "s3": lambda url, _: StoreSource(url),
    "gs": lambda url, _: StoreSource(url),
    "az": lambda url, _: StoreSource(url),
}


def source_for(url: str, *, timeout_s: float) -> Source:
    """Make the source of a URL; may import a large library. Raises ``SourceError``."""
    scheme, separator, _ = url.partition("://")
    make = SOURCES.get(scheme) if separator else None
    if make is None:
        raise SourceError(f"{url} has none of the schemes {', '.join(SOURCES)}", permanent=True)
    return make(url, timeout_s)
