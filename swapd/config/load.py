"""Reads a configuration file: all of it or nothing, with every problem named at once.

Order: YAML, then each key by itself, then what only the whole shows, then what the disk says; a later step runs only
on what the earlier ones let through. Blocks on the disk: call it in a thread when requests are being served.
"""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from swapd.config import checks, presence
from swapd.config.advice import advise
from swapd.config.explain import Finding, explain
from swapd.config.model import Model
from swapd.config.problems import ConfigError, Problem
from swapd.config.schema import Settings
from swapd.config.source import MAX_BYTES, Source, SourceError, Where, read

#: what must be text however it looks: ``[--port, 8080]``, ``{DEBUG: on}``
_TEXT_LISTS = frozenset({"command", "args", "aliases", "env"})

#: a key that is left out because it is wrong -> the key that would be found to lack it
_RESTS_ON: dict[Where, str] = {("scheduling", "max_pinned_gpus"): "on_thrash", ("http", "auth"): "listen"}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration that can be used."""

    settings: Settings
    #: in the file's order
    warnings: tuple[Problem, ...]
    path: Path
    #: what the file says and where
    source: Source = field(repr=False)

    def problem(self, where: Where, message: str) -> Problem:
        """Return a problem at a key of the file."""
        return Problem(self.path, self.source.line(where), message)


def load(path: Path, *, elsewhere: bool = False) -> Loaded:
    """Read and check a configuration file. Raises ConfigError with everything that is wrong with it, nothing else.

    ``elsewhere``: it is for another machine, so programs and weights are not looked for on this one.
    """
    path = Path.cwd() / path  # not resolve(): a ConfigMap's symlinks lead to a directory that changes
    try:
        source = read(_content(path), _is_text)
    except SourceError as error:
        raise ConfigError((Problem(path, error.line, error.message),)) from None
    settings, found = _settings(source, path.parent)
    problems = [*source.problems, *_placed(source, found)]
    if settings is not None:
        problems += _placed(source, checks.check(settings))
        if not elsewhere:
            problems += _placed(source, presence.check(settings))
    if settings is None or problems:
        raise ConfigError(_sorted(path, problems))
    return Loaded(settings, _sorted(path, _placed(source, advise(settings))), path, source)


def _content(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe would block for ever
            raise SourceError(1, "make the configuration file a regular file")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SourceError(1, f"make the configuration file readable: {error.strerror or error}") from None


def _is_text(where: Where) -> bool:
    match where:
        case ("models", _, key, _):
            return key in _TEXT_LISTS
        case ("models", _, "stop", "command", _) | ("models", _, "weights", "include", _):
            return True
        case _:
            return False


def _settings(source: Source, directory: Path) -> tuple[Settings | None, list[Finding]]:
    """Return what is wrong with single keys, and the settings without them, if enough is left to go on checking."""
    value = {} if source.value is None else source.value
    if not isinstance(value, dict):
        return None, [((), "begin the file with a section, for example http: or models:, not with a list or a word")]
    found: list[Finding] = []
    try:
        settings = Settings.model_validate(value)
    except ValidationError as error:
        found = list(explain(error, value))
        try:
            settings = Settings.model_validate(_without(value, [where for where, _ in found]))
        except ValidationError:
            return None, found
    return _anchored(settings, directory), found


def _without(value: dict[str, object], places: list[Where]) -> dict[str, object]:
    """Leave out what was found wrong, of a section the key, of the models the whole model; and what rests on it."""
    kept = {key: dict(section) if isinstance(section, dict) else section for key, section in value.items()}
    for where in places:
        section = kept.get(str(where[0])) if where else None
        if len(where) > 1 and isinstance(section, dict):
            section.pop(where[1], None)
            section.pop(_RESTS_ON.get(where), None)
        elif where:
            kept.pop(str(where[0]), None)
    return kept


def _anchored(settings: Settings, directory: Path) -> Settings:
    """Make relative paths absolute."""
    models = {name: _anchored_model(model, directory) for name, model in settings.models.items()}
    admin, state, cache = settings.admin, settings.state, settings.cache
    if admin.socket is not None:
        admin = admin.model_copy(update={"socket": _absolute(admin.socket, directory)})
    if state.path is not None:
        state = state.model_copy(update={"path": _absolute(state.path, directory)})
    if cache.path is not None:
        cache = cache.model_copy(update={"path": _absolute(cache.path, directory)})
    anchored = settings.model_copy(update={"models": models, "admin": admin, "state": state, "cache": cache})
    anchored._directory = directory  # noqa: SLF001  # the one place that knows it
    return anchored


def _anchored_model(model: Model, directory: Path) -> Model:
    changed: dict[str, object] = {"command": _anchored_program(model.command, directory)}
    if model.local_weights is not None:
        changed["weights"] = _absolute(model.local_weights, directory)
    if model.stop.command is not None:
        stop_command = _anchored_program(model.stop.command, directory)
        changed["stop"] = model.stop.model_copy(update={"command": stop_command})
    return model.model_copy(update=changed)


def _anchored_program(program: tuple[str, ...], directory: Path) -> tuple[str, ...]:
    if not program or "/" not in program[0] or program[0].startswith("{"):
        return program
    return (str(_absolute(Path(program[0]), directory)), *program[1:])


def _absolute(path: Path, directory: Path) -> Path:
    with contextlib.suppress(RuntimeError):  # no such user: taken as it stands, and then not found
        path = path.expanduser()
    return Path(os.path.normpath(directory / path))


def _placed(source: Source, found: Iterable[Finding]) -> list[tuple[int, str]]:
    return [(source.line(where), message) for where, message in found]


def _sorted(path: Path, found: list[tuple[int, str]]) -> tuple[Problem, ...]:
    return tuple(Problem(path, line, message) for line, message in sorted(dict.fromkeys(found)))
