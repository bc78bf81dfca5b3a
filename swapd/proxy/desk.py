"""Bundles what serving a request needs; replaced as a whole when the settings change."""

from dataclasses import dataclass

from swapd.core.ids import Instant, ModelName
from swapd.proxy.budget import Budget
from swapd.proxy.gate import Gate
from swapd.proxy.relay import Relay
from swapd.proxy.services import Services
from swapd.proxy.settings import ProxySettings


@dataclass(frozen=True, slots=True)
class Desk:
    """The same for all requests that arrive under the same settings."""

    services: Services
    settings: ProxySettings
    gate: Gate
    relay: Relay
    budget: Budget

    def ready_since(self, model: ModelName) -> Instant | None:
        """Return since when a model is ready; ``None``: it is not."""
        offer = self.services.offer(model)
        return None if offer is None else offer.ready_since
