"""Finds the ports a configuration fixes, refuses those given out twice, and says which ones engines must not get."""

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from swapd.config.explain import Finding, at, dotted
from swapd.config.model import EngineKind
from swapd.config.schema import Settings
from swapd.config.source import Where
from swapd.config.units import Listen

#: options whose value is a port the program itself listens on
_OPTION: Final = re.compile(r"--?(?:(?:http|grpc|server)[-_])?(?:port|listen|bind)(?:=(.*))?", re.DOTALL)
_PORT: Final = re.compile(r"(?:.*:)?([0-9]{1,5})")
_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  # compared with, not bound to


def fixed_ports(settings: Settings) -> Iterator[tuple[Where, int]]:
    """Yield every port written into the file: our listeners, the servers' URLs, options of commands."""
    for where, listen in _listeners(settings):
        if listen.port:
            yield where, listen.port
    for name, model in settings.models.items():
        if model.url is not None:
            yield ("models", name, "url"), urlsplit(model.url).port or 80
        if model.engine is not EngineKind.EXTERNAL:
            for key, words in (("command", model.command), ("args", model.args)):
                for position, port in _written(words):
                    yield ("models", name, key, position), port


def reserved_ports(settings: Settings) -> frozenset[int]:
    """Return the ports that no engine may be given, whatever ``engines.ports`` says."""
    return frozenset(port for _, port in fixed_ports(settings))


def clashes(settings: Settings) -> Iterator[Finding]:
    """Yield place and sentence of each port that cannot be served twice."""
    http, metrics = settings.http.listen, settings.metrics.listen
    if (
        http.port
        and http.port == metrics.port
        and (http.host == metrics.host or {http.host, metrics.host} & _EVERYWHERE)
    ):
        yield at(("metrics", "listen"), f"choose another port: {http.port} is the one of `http.listen`")
    first: dict[int, Where] = {}
    for where, port in fixed_ports(settings):
        before = first.setdefault(port, where)
        if before == where or where[:2] == before[:2] or where[0] != "models":
            continue
        if where[-1] == "url" == before[-1]:
            continue  # one external server may serve several models
        remedy = "name another server" if where[-1] == "url" else "write {port} and let swapd choose one"
        yield at(where, f"{remedy}: port {port} belongs to `{dotted(before)}` already")


def _listeners(settings: Settings) -> tuple[tuple[Where, Listen], ...]:
    return (("http", "listen"), settings.http.listen), (("metrics", "listen"), settings.metrics.listen)


def _written(words: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Yield position and value of each port among a command's words."""
    for position, word in enumerate(words):
        option = _OPTION.fullmatch(word)
        if option is None:
            continue
        place = position if option[1] is not None else position + 1
        value = option[1] if option[1] is not None else "".join(words[place : place + 1])
        if (port := _PORT.fullmatch(value)) and 0 < int(port[1]) < 1 << 16:
            yield place, int(port[1])
