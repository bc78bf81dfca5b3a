"""Bundles what serving a request needs; replaced as a whole when the settings change."""

from dataclasses import dataclass

from swapd.proxy.budget import Budget
from swapd.proxy.gate import Gate
from swapd.proxy.ready import ReadyModels
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
    ready: ReadyModels
