"""Makes the requests of a simulated run: by a law of chance, or by a fixed pattern (``traces`` reads recorded ones).

Every maker returns arrivals in order of time with request ids counted from 1. Times are nanoseconds from the
start of the run; service times are what the engine takes once the request is granted.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swapd.core.events import RequestArrived
from swapd.core.ids import Duration, Instant, ModelName, RequestId, seconds


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a workload."""

    at: Instant
    request: RequestId
    model: ModelName
    #: from grant to the end of the answer
    service: Duration

    def event(self) -> RequestArrived:
        """Return the fact the shell would report."""
        return RequestArrived(self.at, self.request, self.model)


@dataclass(frozen=True, slots=True)
class Zipf:
    """Independent requests; the model of rank r is asked for with weight 1 / r ** exponent."""

    rate_per_s: float
    duration: Duration
    exponent: float = 1.0
    mean_service: Duration = seconds(5)

    def arrivals(self, models: Sequence[ModelName], chance: random.Random) -> list[Arrival]:
        """Draw the arrivals; gaps and service times are exponential."""
        weights = [1 / rank**self.exponent for rank in range(1, len(models) + 1)]
        found: list[tuple[float, ModelName, Duration]] = []
        at = chance.expovariate(self.rate_per_s)
        while seconds(at) < self.duration:
            service = Duration(round(chance.expovariate(1) * self.mean_service))
            found.append((at, chance.choices(models, weights)[0], service))
            at += chance.expovariate(self.rate_per_s)
        return numbered(found)


def burst(models: Iterable[ModelName], *, at_s: float = 0, gap_s: float = 0, service: Duration) -> list[Arrival]:
    """One request for each model named, in the order named, ``gap_s`` apart."""
    return numbered((at_s + number * gap_s, model, service) for number, model in enumerate(models))


def ping_pong(models: Sequence[ModelName], count: int, *, gap_s: float, service: Duration) -> list[Arrival]:
    """``count`` requests that go round the models in turn, ``gap_s`` apart."""
    return burst((models[number % len(models)] for number in range(count)), gap_s=gap_s, service=service)


def numbered(requests: Iterable[tuple[float, ModelName, Duration]]) -> list[Arrival]:
    """Give (seconds, model, service time) their order and ids, from 1."""
    ordered = sorted(requests, key=lambda request: request[0])
    return [
        Arrival(Instant(seconds(at_s)), RequestId(number), model, service)
        for number, (at_s, model, service) in enumerate(ordered, start=1)
    ]


def merged(*workloads: Iterable[Arrival]) -> list[Arrival]:
    """Join workloads into one, with new ids."""
    return numbered((float(a.at) / 1e9, a.model, a.service) for workload in workloads for a in workload)
