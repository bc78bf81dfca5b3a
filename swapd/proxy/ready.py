"""Remembers the models for a moment, for comments to those who wait and records of those who leave in crowds.

Asking the core costs as much as many requests; what is known of the last moment is good enough for a label.
"""

from collections.abc import Callable, Mapping
from typing import Final

from swapd.core.ids import MILLISECOND, Instant, ModelName
from swapd.core.reasons import State
from swapd.core.view import ModelView, NodeView

_FRESH: Final = 100 * MILLISECOND


class ReadyModels:
    """The models, and since when those are ready that are; at most 100 ms old."""

    def __init__(self, view: Callable[[], NodeView], now: Callable[[], Instant]) -> None:
        self._view = view
        self._now = now
        self._models: Mapping[ModelName, ModelView] = {}
        self._since: Mapping[ModelName, Instant] = {}
        self._asked: Instant | None = None

    def since(self, model: ModelName) -> Instant | None:
        """Return since when a model is ready; ``None``: it is not."""
        self._refresh()
        return self._since.get(model)

    def model(self, name: ModelName) -> ModelView | None:
        """Return a model as it was a moment ago; ``None``: it is not configured."""
        self._refresh()
        return self._models.get(name)

    def _refresh(self) -> None:
        now = self._now()
        if self._asked is None or now - self._asked > _FRESH:
            self._asked = now
            self._models = {row.model: row for row in self._view().models}
            instances = (row.instance for row in self._models.values())
            self._since = {
                instance.model: instance.since
                for instance in instances
                if instance is not None and instance.state is State.READY
            }
