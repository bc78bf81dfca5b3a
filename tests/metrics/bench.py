"""A Metrics object under test: a node, a clock and a page that can be asked for single series."""

from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from swapd.core.ids import SECOND, Duration, Instant, ModelName
from swapd.core.view import NodeView
from swapd.metrics.collect import Metrics
from swapd.metrics.now import CacheNow, DriverStats
from tests.fakes.node_views import in_steps, model_view, node_view


def seconds(value: float) -> Duration:
    return Duration(round(value * SECOND))


@dataclass
class Bench:
    """`series` reads the page as a scraper would."""

    view: NodeView = field(default_factory=lambda: node_view(model_view("m01"), model_view("m02")))
    now: Instant = Instant(0)
    reasons: tuple[str, ...] = ()
    wall: float = 1_700_000_000.0
    driver: DriverStats | None = None
    cache: CacheNow | None = None

    def __post_init__(self) -> None:
        self.metrics = Metrics(
            view=lambda: in_steps(self.view),
            now=lambda: self.now,
            not_ready=lambda: self.reasons,
            version="1.2.3",
            driver=lambda: self.driver,
            cache=lambda: self.cache,
            revision="abc",
            wall=lambda: self.wall,
        )
        self.metrics.configure(ModelName(model.model) for model in self.view.models if model.configured)

    async def text(self, accept: str = "") -> str:
        body, _ = await self.metrics.page(accept)
        return body.decode()

    async def series(self) -> dict[str, float]:
        """Return every sample as `name{label=value,…}` with labels in order of their names."""
        found = {}
        for family in text_string_to_metric_families(await self.text()):
            for sample in family.samples:
                labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found
