"""Says which names the node answers to, and translates a model's settings into what engines and proxy take.

Takes a new configuration in one step; an instance keeps the plan it was started with.
"""

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from swapd.config.devices import Numa
from swapd.config.model import Model, OnClientAbort
from swapd.config.model import WarmupRequest as WarmupSettings
from swapd.config.schema import Settings
from swapd.core.ids import ModelName
from swapd.engines.base import Binding, EngineError, EngineOptions, EnginePlan, Warmup, WarmupRequest
from swapd.engines.registry import plan
from swapd.engines.request_paths import allowed
from swapd.proxy.services import ListedModel, RouteOptions

_NO_OPTIONS: Final = RouteOptions()


class _Routes(dict[ModelName, RouteOptions]):
    """How requests for each model are relayed; the defaults for a model that has just been removed."""

    def __missing__(self, name: ModelName) -> RouteOptions:
        return _NO_OPTIONS


class Directory:
    """The configured models by name and alias."""

    def __init__(
        self, settings: Settings, *, created: int, cached: Callable[[ModelName], Path | None] = lambda _: None
    ) -> None:
        """Take the first configuration; clients see ``created`` (unix seconds) as the age of every model.

        ``cached`` tells where in the weight cache the copy of a model lies; ``None``: there is none.
        """
        self._created = created
        self._cached = cached
        self._routes = _Routes()
        #: returns how requests for a model are relayed; the look-up itself, because every request needs one
        self.route_options: Final[Callable[[ModelName], RouteOptions]] = self._routes.__getitem__
        self.apply(settings)

    def apply(self, settings: Settings) -> None:
        """Take a new configuration."""
        self._models: dict[ModelName, Model] = {ModelName(name): model for name, model in settings.models.items()}
        self._options = {name: _engine_options(name, model, settings) for name, model in self._models.items()}
        self._bind = settings.devices.numa is Numa.AUTO
        self._routes.clear()
        self._routes.update({name: _route_options(model) for name, model in self._models.items()})
        self._names: dict[str, ModelName] = {str(name): name for name in self._models}
        #: returns the model that a name or alias stands for; the look-up itself, because every request needs one
        self.resolve: Callable[[str], ModelName | None] = self._names.get
        for name, model in self._models.items():
            self._names.update(dict.fromkeys(model.aliases, name))
        self._listed = tuple(
            ListedModel(name=name, aliases=model.aliases, created=self._created)
            for name, model in sorted(self._models.items())
        )

    @property
    def names(self) -> tuple[ModelName, ...]:
        """The configured names, without aliases."""
        return tuple(self._models)

    def aliases(self) -> Mapping[ModelName, tuple[str, ...]]:
        """Return the aliases of each model."""
        return {name: model.aliases for name, model in self._models.items()}

    def gpu_counts(self) -> Mapping[ModelName, int]:
        """Return how many GPUs each model takes, by name."""
        return {name: model.gpus for name, model in sorted(self._models.items())}

    def models(self) -> Sequence[ListedModel]:
        """Return the models as clients see them, by name."""
        return self._listed

    def allowed(self, name: ModelName, method: str, path: str) -> bool:
        """Say whether clients may reach this path of the model's engine."""
        model = self._models.get(name)
        return model is not None and allowed(model.engine.value, method, path)

    def plan(self, name: ModelName, *, port: int, devices: tuple[str, ...], binding: Binding) -> EnginePlan:
        """Return how to run one instance of a model, near its GPUs if the configuration allows; raises EngineError."""
        near = binding if self._bind else Binding()
        options = self._options[name]
        if self._models[name].source is not None:
            copy = self._cached(name)
            if copy is None:
                sentence = f"the weights of {name} have left the cache since its load was decided"
                raise EngineError(sentence, permanent=False)
            options = replace(options, weights=str(copy))
        return plan(options, port=port, devices=devices, environ=os.environ, binding=near)


def _route_options(model: Model) -> RouteOptions:
    finish = model.on_client_abort is OnClientAbort.FINISH
    return RouteOptions(finish_on_abort=finish, request_timeout=model.request_timeout)


def _engine_options(name: ModelName, model: Model, settings: Settings) -> EngineOptions:
    return EngineOptions(
        name=name,
        engine=model.engine.value,
        command=model.command,
        args=model.args,
        weights=None if model.local_weights is None else str(model.local_weights),
        env=model.env,
        cwd=str(settings.directory),
        aliases=model.aliases,
        concurrency=model.concurrency,
        health_path=model.health.path,
        health_timeout=model.health.timeout,
        warmup=_warmup(model),
        stop_signal=signal.Signals[model.stop.signal],
        stop_grace=model.stop.grace,
        stop_command=model.stop.command,
        url=model.url,
    )


def _warmup(model: Model) -> Warmup | WarmupRequest:
    if isinstance(model.warmup, WarmupSettings):
        return WarmupRequest(method="POST", path=model.warmup.path, body=json.dumps(model.warmup.body).encode())
    return Warmup.AUTO if model.warmup == "auto" else Warmup.NONE
