"""Builds what ``swapd simulate`` plays from files and options: node, models, rules, requests.

Every mistake in a file or an option becomes one sentence that names it, before anything is simulated.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from swapd.cli.client import printable
from swapd.cli.matrix_file import read_matrix
from swapd.cli.placing import of_any_kind
from swapd.config.compile import compile_catalog, compile_topology
from swapd.config.load import load
from swapd.config.problems import ConfigError
from swapd.config.units import parse_duration, parse_size
from swapd.core.catalog import Catalog
from swapd.core.ids import Bytes, Duration, ModelName
from swapd.core.sentences import number
from swapd.core.topology import Gpu, NodeTopology
from swapd.gpus.fake_gpu import Product
from swapd.gpus.fixture import MatrixError
from swapd.gpus.fixture_node import topology_of
from swapd.sim.rehearse import rehearse
from swapd.sim.study import Study
from swapd.sim.traces import TraceError, read_models, read_requests, unlisted
from swapd.sim.workload import Arrival
from swapd.sim.world import Timings

DEFAULT_GPUS: Final = 8
DEFAULT_MEMORY: Final = "80GiB"
#: longer than any trace
NEVER: Final = Duration(10 * 366 * 86_400 * 10**9)
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says of node, models and rules; ``None``: nothing."""

    trace: Path
    models: Path
    fixture: Path | None = None
    gpus: int | None = None
    gpu_memory: str | None = None
    pins: tuple[str, ...] = ()
    loads: int | None = None
    max_wait: str | None = None
    protect_max_wait: str | None = None
    drain_after: str | None = None
    unload: str | None = None
    round_gpus: bool = False
    #: requests for models that are not listed are left out
    drop_unknown: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """What is to be played, and what of the trace is not."""

    study: Study
    #: requests left out because their model is not listed
    dropped: int = 0


def scene(options: Options) -> Scene:
    """Return what is to be played. Raises ``click.ClickException``."""
    arrivals = _requests(options.trace)
    if not arrivals:
        raise click.ClickException(f"{options.trace}: it has no requests")
    if options.models.suffix in (".yaml", ".yml"):
        catalog, topology = _configured(options)
    else:
        topology = _node(options)
        catalog = _listed(options, topology, len(arrivals))
    listed = _of_listed(options, arrivals, catalog)
    study = Study(topology, _ruled(options, catalog), listed, timings=_timings(options))
    study = study.pinning(_pins(options, catalog))
    if options.round_gpus:
        study = study.rounded_up()
    for place in rehearse(study.topology, study.catalog):
        if place.why:
            raise click.ClickException(printable(place.why))
    return Scene(study, dropped=len(arrivals) - len(listed))


def duration(value: str, option: str, *, endless: bool = True) -> Duration:
    """Return a duration of the command line. Raises ``click.BadParameter``.

    ``never``, which is longer than any trace, is one only where it may be ``endless``.
    """
    if endless and value == "never":
        return NEVER
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def _requests(path: Path) -> list[Arrival]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            return read_requests(lines)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror or error}") from None
    except TraceError as error:
        raise click.ClickException(f"{path}: {printable(error)}") from None


def _of_listed(options: Options, arrivals: list[Arrival], catalog: Catalog) -> list[Arrival]:
    """Return the requests for listed models; refuse the others, unless they are to be left out."""
    stray = unlisted(arrivals, catalog.models)
    if not stray:
        return arrivals
    known = [arrival for arrival in arrivals if arrival.model in catalog.models]
    if not known:
        raise click.ClickException(f"{options.models} lists none of the models that {options.trace} asks for")
    if not options.drop_unknown:
        count = f"{number(len(arrivals) - len(known), 'request')} of {len(arrivals)}"
        raise click.ClickException(
            f"{options.models} does not list {_names(stray)}, for which {options.trace} has {count}. "
            "Add a line for each such model, or leave these requests out with --drop-unknown"
        )
    return known


def _listed(options: Options, topology: NodeTopology, requests: int) -> Catalog:
    """Return the models of a list; each takes its GPUs whole, and lets any number of requests wait for ever."""
    whole = min((gpu.memory_bytes for gpu in topology.gpus), default=Bytes(0))
    try:
        with options.models.open(encoding="utf-8-sig", newline="") as lines:
            specs = read_models(lines, bytes_per_gpu=whole)
    except OSError as error:
        raise click.ClickException(f"{options.models} cannot be read: {error.strerror or error}") from None
    except TraceError as error:
        raise click.ClickException(f"{options.models}: {printable(error)}") from None
    return Catalog({name: replace(spec, max_wait=NEVER, max_queue=requests) for name, spec in specs.items()})


def _configured(options: Options) -> tuple[Catalog, NodeTopology]:
    """Return models and rules of a configuration, with its own promises and limits, and the node to play on."""
    try:
        settings = load(options.models, elsewhere=True).settings
    except ConfigError as error:
        raise click.ClickException("\n".join(printable(problem) for problem in error.problems)) from None
    catalog = compile_catalog(settings)
    own = settings.devices.virtual is not None and options.fixture is None and options.gpus is None
    topology = compile_topology(settings) if own else _node(options)
    return of_any_kind(catalog), replace(topology, host_bytes=None)


def _node(options: Options) -> NodeTopology:
    """Return the machine of a topology matrix, or virtual GPUs without wiring."""
    if options.fixture is not None and options.gpus is not None:
        raise click.UsageError("--topology and --gpus exclude each other: a topology matrix tells the number of GPUs")
    try:
        memory = parse_size(options.gpu_memory or DEFAULT_MEMORY)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--gpu-memory") from None
    if options.fixture is None:
        count = DEFAULT_GPUS if options.gpus is None else options.gpus
        return NodeTopology(tuple(Gpu(index, f"virtual-{index}", memory) for index in range(count)))
    try:
        text = read_matrix(options.fixture)
        return topology_of(text, Product(total_bytes=memory, reserved_bytes=0))
    except OSError as error:
        raise click.ClickException(f"{options.fixture} cannot be read: {error.strerror or error}") from None
    except MatrixError as error:
        raise click.ClickException(f"{options.fixture} is no topology matrix: {error}") from None


def _ruled(options: Options, catalog: Catalog) -> Catalog:
    """Return the catalogue under the rules that the options name."""
    settings = catalog.settings
    if options.loads is not None:
        settings = replace(settings, max_concurrent_loads=options.loads)
    if options.protect_max_wait is not None:
        patience = duration(options.protect_max_wait, "--protect-max-wait")
        settings = replace(settings, protect_max_wait=None if patience == NEVER else patience)
    if options.drain_after is not None:
        settings = replace(settings, drain_after=duration(options.drain_after, "--drain-after"))
    models = dict(catalog.models)
    if options.max_wait is not None:
        promise = duration(options.max_wait, "--max-wait")
        models = {name: replace(spec, max_wait=promise) for name, spec in models.items()}
    return replace(catalog, models=models, settings=settings)


def _timings(options: Options) -> Timings:
    """Return how long it takes to get rid of a model: two thirds to end it, the rest until its memory is free."""
    if options.unload is None:
        return Timings()
    unload = duration(options.unload, "--unload", endless=False)
    stop = Duration(2 * unload // 3)
    return Timings(stop=stop, release=Duration(unload - stop))


def _pins(options: Options, catalog: Catalog) -> list[ModelName]:
    pins = [ModelName(name) for name in options.pins]
    unknown = [name for name in pins if name not in catalog.models]
    if unknown:
        raise click.BadParameter(f"{options.models} does not list {_names(unknown)}", param_hint="--pin")
    return pins


def _names(names: list[ModelName]) -> str:
    more = len(names) - _NAMED
    return printable(", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else ""))
