"""Builds the frozen view of the node; the only door through which others see the core's state."""

from collections.abc import Generator, Iterable
from typing import Final

from swapd.core.eta import release_estimate
from swapd.core.ids import NO_GPUS, Bytes, GpuSet, Instant
from swapd.core.node import GpuRecord, Node
from swapd.core.node_drain import drained
from swapd.core.reasons import State, WaitingFor
from swapd.core.state import Instance, Model
from swapd.core.view import FetchView, FreeView, GpuView, InstanceView, ModelView, NodeView, Offer, ReservationView
from swapd.core.weights import lacks_weights, remaining_fetch

#: less foreign memory than this leaves a GPU free: a display, a monitor's context
FOREIGN_OF_WEIGHT: Final = Bytes(1 << 30)


#: models that are shown in one step of ``in_steps``: a fraction of a millisecond
STEP: Final = 10


def build(node: Node, at: Instant) -> NodeView:
    """Return the node as it is after the last event, with what fades or ages reckoned to ``at``."""
    return bare(node, at, models(node, _by_name(node), at))


def in_steps(node: Node, at: Instant) -> Generator[None, None, NodeView]:
    """Build the same in small steps, between which other events may be handled; return it after the last one.

    A model and its instance are of one moment; models and GPUs may be some events apart.
    """
    chosen = _by_name(node)
    shown: tuple[ModelView, ...] = ()
    for start in range(0, len(chosen), STEP):
        shown += models(node, chosen[start : start + STEP], max(at, node.at))
        yield
    return bare(node, max(at, node.at), shown)


def bare(node: Node, at: Instant, shown: tuple[ModelView, ...] = ()) -> NodeView:
    """Return the node as ``build`` does, but with these models only."""
    return NodeView(
        at=at,
        mode=node.settings.mode,
        draining=node.drain is not None,
        drained=drained(node),
        models=shown,
        instances=tuple(_instance(instance) for instance in node.instances.values()),
        gpus=tuple(_gpu(gpu) for gpu in node.gpus),
        topology=node.topology,
        free=_free(node),
        host_booked_bytes=Bytes(node.host_booked),
        reservation=_reservation(node),
        loads_running=node.loads_running,
        load_fraction=node.load.fraction(at),
        load_verdict=node.load.shown(at),
        max_pinned_gpus=node.settings.max_pinned_gpus,
        on_thrash=node.settings.on_thrash,
        stale_facts=node.stale_facts,
        story=node.story.lines(),
    )


def models(node: Node, chosen: Iterable[Model], at: Instant) -> tuple[ModelView, ...]:
    """Return some models of the node as ``build`` shows them."""
    return tuple(model_view(node, model, at) for model in chosen)


def offer(model: Model, at: Instant) -> Offer:
    """Return what clients are told of a model."""
    return Offer(
        None if model.instance is None else _instance(model.instance),
        _ahead(model.cooling_until, at) is not None,
        model.weights.cached is not None,
        model.spec.max_wait,
        model.typical,
    )


def _by_name(node: Node) -> list[Model]:
    return [model for _, model in sorted(node.models.items())]


def _instance(instance: Instance) -> InstanceView:
    return InstanceView(
        instance=instance.id,
        model=instance.model.name,
        state=instance.state,
        since=instance.since,
        gpus=instance.gpus,
        bytes_per_gpu=instance.bytes_per_gpu,
        stage=instance.timeline[-1][0] if instance.state is State.LOADING else None,
        in_flight=len(instance.in_flight),
        last_used=instance.last_used,
        outdated=instance.outdated_since is not None,
    )


def model_view(node: Node, model: Model, at: Instant) -> ModelView:
    """Return one model as ``build`` shows it."""
    demand = model.demand
    faded = model.frequency * 2.0 ** ((model.frequency_at - at) / node.settings.frequency_half_life)
    instance = None if model.instance is None else _instance(model.instance)
    return ModelView(
        model=model.name,
        instance=instance,
        configured=model.configured,
        pinned_by=model.pinned_by,
        priority=model.spec.priority,
        queued={waiting_for(node, model): len(model.queue)} if model.queue else {},
        oldest_waiter=model.queue.oldest().arrived if model.queue else None,
        in_flight=0 if instance is None else instance.in_flight,
        load_estimate=model.lhat,
        load_times=model.typical,
        max_wait=model.spec.max_wait,
        fetched=model.spec.fetched,
        cached_bytes=model.weights.cached,
        fetch=_fetch(node, model, at),
        gpus=model.spec.footprint.gpus,
        declared_bytes=model.spec.footprint.bytes_per_gpu,
        measured_bytes=model.measured,
        frequency=faded,
        verdict=demand.shown(at),
        load_ratio=demand.load_ratio(at, model.lhat),
        load_fraction=demand.load_fraction(at),
        partner=demand.partner,
        inter_arrival=demand.inter_arrival(at),
        totals=demand.totals(),
        hourly=demand.hourly(at),
        evicts=tuple(item for item in demand.account.collateral(at) if item[0] in node.models),
        week=model.week,
        move=model.move,
        consecutive_failures=model.failures,
        cooling_until=_ahead(model.cooling_until, at),
        last_error=model.last_error,
        story=model.story.lines(),
    )


def _ahead(moment: Instant | None, at: Instant) -> Instant | None:
    return moment if moment is not None and moment > at else None


def _fetch(node: Node, model: Model, at: Instant) -> FetchView | None:
    fetch = model.weights.fetch
    if fetch is None:
        return None
    return FetchView(
        since=fetch.since,
        running=fetch.running is not None,
        done=fetch.done,
        total=fetch.total or model.weights.size,
        rate=fetch.rate,
        remaining=remaining_fetch(node, model, at),
        waits=fetch.waits,
    )


def waiting_for(node: Node, model: Model) -> WaitingFor:
    """Return what the queue of a model waits for."""
    instance = model.instance
    if instance is None:
        if node.reservation is not None and node.reservation.model is model:
            return WaitingFor.VICTIMS
        return WaitingFor.WEIGHTS if lacks_weights(node, model, release_estimate(node)) else WaitingFor.ROOM
    if instance.state is State.RESERVED:
        return WaitingFor.VICTIMS if instance.weights_wanting is None else WaitingFor.WEIGHTS
    if instance.state is State.LOADING:
        return WaitingFor.LOAD
    return WaitingFor.ENGINE_SLOT if instance.state is State.READY else WaitingFor.ROOM


def _gpu(gpu: GpuRecord) -> GpuView:
    residents = gpu.instances.values()
    leaked = sum(instance.charge(gpu.index) for instance in residents if instance.state is State.LEAKED)
    return GpuView(
        index=gpu.index,
        uuid=gpu.gpu.uuid,
        memory_bytes=gpu.memory_bytes,
        health=gpu.gpu.health,
        free_bytes=gpu.free_bytes,
        foreign_bytes=gpu.foreign_bytes,
        reserved_bytes=Bytes(sum(instance.charge(gpu.index) for instance in residents)),
        quarantined_bytes=Bytes(leaked),
        models=tuple(instance.model.name for instance in residents),
    )


def _free(node: Node) -> FreeView:
    """Return what could be taken without evicting anybody; a GPU with leaked memory is not free."""
    free = GpuSet(sum(1 << gpu.index for gpu in node.gpus if _is_free(gpu)))
    size, block = node.boards.largest_nvlink_block(free)
    domains = node.boards.domains()
    return FreeView(
        gpus=free,
        largest_nvlink_block=size,
        largest_nvlink_set=block,
        largest_clique=node.boards.largest_clique(free),
        whole_domains=tuple(domain for domain in domains if domain & free in (NO_GPUS, domain)),
        fragmented_domains=tuple(domain for domain in domains if domain & free not in (NO_GPUS, domain)),
    )


def _is_free(gpu: GpuRecord) -> bool:
    return gpu.gpu.placeable and not gpu.instances and gpu.foreign_bytes < FOREIGN_OF_WEIGHT


def _reservation(node: Node) -> ReservationView | None:
    reservation = node.reservation
    if reservation is None:
        return None
    draining = tuple(victim.model.name for victim in reservation.victims if victim.state is State.DRAINING)
    return ReservationView(reservation.model.name, reservation.gpus, reservation.since, draining)
