"""States the laws that hold of a whole step: its evictions, its queues, its wake-up, its number of commands."""

from collections.abc import Callable, Mapping

from swapd.core.catalog import Mode, ModelSpec
from swapd.core.commands import (
    Command,
    Evicted,
    FetchWeights,
    KeepWeights,
    RefetchWeights,
    Reject,
    Start,
    Transitioned,
)
from swapd.core.events import Event, RequestArrived, Tick
from swapd.core.ids import Duration, Instant, ModelName, gpu_indices, seconds
from swapd.core.reasons import Rejection, State, UnloadCause
from swapd.core.scheduler import Scheduler
from swapd.core.topology import DriverState
from swapd.core.view import NodeView, WeightStanding
from tests.fakes.node_views import offer_of
from tests.properties.books import Books, Instance, Phase
from tests.properties.broken import broken
from tests.properties.weight_books import held, prefetches

#: what the weight cache knows of each model: held, pinned; ``None``: the suite cannot tell
Kept = dict[ModelName, tuple[bool, bool] | None]


def protection_is_bounded(books: Books, before: Books, commands: tuple[Command, ...]) -> None:
    """Spare a victim for its protection time, unless the one who needs its room has waited long enough."""
    settings = books.catalog.settings
    for note in _evictions(commands):
        victim = before.instances.get(note.instance)
        spec = books.catalog.models.get(note.model)
        since = before.waits_since(note.successor) if note.successor else None
        if since is None and note.successor:
            since = books.waits_since(note.successor)
        if victim is None or victim.ready is None or spec is None or since is None:
            continue
        waited = books.now - since
        newcomer = books.catalog.models.get(note.successor) if note.successor else None
        limit = settings.protect_max_wait
        patient = limit is not None and (waited >= limit or _in_a_hurry(books, newcomer, waited))
        if not patient and books.now < victim.last_used + protection(books, spec):
            broken("protection_is_bounded", f"{note}: last used {victim.last_used}, the successor waited {waited} ns")
        residency = max(settings.min_residency, round(settings.min_residency_load_times * _load_time(books, spec)))
        if books.now < victim.ready + residency:
            broken("protection_is_bounded", f"{note}: ready since {victim.ready} only, {residency} ns are promised")


def protection(books: Books, spec: ModelSpec) -> Duration:
    """Return the least time since its last use that protects a model."""
    configured = books.catalog.settings.protect
    return min(_load_time(books, spec), seconds(120)) if configured is None else configured


def _in_a_hurry(books: Books, newcomer: ModelSpec | None, waited: Duration) -> bool:
    """Say whether the newcomer's promise may be at stake, with the most that can be reckoned for making room."""
    if newcomer is None:
        return False
    measured = books.load_times.get(newcomer.name, [Duration(0)])
    load = max(newcomer.load_estimate, *(measured if newcomer.fetched or newcomer.local_weights else measured[-5:]))
    clearing = max(seconds(20), books.longest_service + max(seconds(3), books.longest_release))
    return waited >= newcomer.max_wait - load - clearing


def _load_time(books: Books, spec: ModelSpec) -> Duration:
    return books.least_load_time(spec.name)


def no_needless_eviction(
    books: Books, before: Books, commands: tuple[Command, ...], plain: Callable[[int], bool]
) -> None:
    """Take a victim only where it stands in the way, and where no room was free without it.

    ``plain``: on a GPU, sizes as configured and measured tell everything.
    """
    for note in commands:
        if not isinstance(note, Transitioned) or note.before is not None or note.model not in books.catalog.models:
            continue
        victims = [before.instances[e.instance] for e in _evictions(commands) if e.successor == note.model]
        spec = books.catalog.models[note.model]
        claims = [i for i in before.instances.values() if i.spec is not None]
        known = {i.id: i for i in claims} | {i.id: i for i in books.instances.values() if i.id < note.instance}
        evicted = {note.instance for note in _evictions(commands)}
        staying = [i for i in known.values() if all(i.id != victim.id for victim in victims)]
        for victim in victims:
            rest = [i for i in staying if _promised(i) or i.id in evicted]
            if books.short_of_host(spec, beside=[*rest, victim]):
                continue
            if not victim.gpus & note.gpus:
                broken("no_needless_eviction", f"{victim} does not stand on {note}")
            clear = all(plain(gpu) for gpu in _indices(note))
            if clear and all(books.fits(spec, gpu, beside=[*rest, victim]) for gpu in _indices(note)):
                broken("no_needless_eviction", f"{note} fits beside {victim}")
        quiet = not any(i.state in {State.DRAINING, State.RESERVED} for i in before.instances.values())
        if books.short_of_host(spec, beside=claims):
            continue
        claims += [i for i in known.values() if i.id not in before.instances]
        if victims and quiet and books.room(spec, beside=claims) and _empty_set_read(books, before, spec):
            broken("no_needless_eviction", f"{note} had room without {victims}")


def _empty_set_read(books: Books, before: Books, spec: ModelSpec) -> bool:
    """Say whether the room that was there stands beyond doubt: virtual, or GPUs without anybody, read as free."""
    devices, need = books.devices, books.need(spec)
    if devices.topology.driver is DriverState.VIRTUAL:
        return True
    taken = {gpu for i in before.instances.values() for gpu in gpu_indices(i.gpus)}
    free = {g.index for g in devices.topology.gpus if g.index not in taken and devices.seen_free(g.index, need)}
    return any(free.issuperset(gpu_indices(gpus)) for gpus in devices.sets(spec))


def infeasible_evicts_nobody(books: Books, event: Event, commands: tuple[Command, ...]) -> None:
    """Refuse a model that pins or size keep out at once; let nobody leave for it."""
    booked = {c.instance: c.model for c in commands if isinstance(c, Transitioned) and c.before is None}
    for note in _evictions(commands):
        spec = books.catalog.models.get(note.successor) if note.successor else None
        # who leaves for room on the disk may find a pinned model on its GPUs at once
        later = () if note.successor in booked.values() else booked
        if spec is not None and not books.feasible(spec, without=later):
            broken("infeasible_evicts_nobody", f"{note}: {note.successor} cannot fit")
    if isinstance(event, RequestArrived) and event.model in books.catalog.models and books.devices.up:
        spec = books.catalog.models[event.model]
        resident = any(i.model == event.model and i.state is not State.LEAKED for i in books.instances.values())
        if not resident and not books.feasible(spec) and books.requests[event.request].phase is Phase.WAITING:
            broken("infeasible_evicts_nobody", f"{event} waits although it cannot be placed")
    for command in commands:
        if isinstance(command, Reject) and command.reason is Rejection.ALL_PINNED:
            spec = books.catalog.models.get(command.model)
            if spec is None or (books.feasible(spec, leaks=True) and books.fits_surely(spec, pins=True)):
                broken("infeasible_evicts_nobody", f"{command}: pins do not stand in the way")


def queue_bounded(books: Books, event: Event) -> None:
    """Make no queue longer than its limit."""
    if isinstance(event, RequestArrived) and event.model in books.catalog.models:
        waiting, limit = len(books.waiting(event.model)), books.catalog.models[event.model].max_queue
        if waiting > limit and books.requests[event.request].phase is Phase.WAITING:
            broken("queue_bounded", f"{waiting} wait for {event.model}, allowed are {limit}")


def commands_bounded(books: Books, before: Books, commands: tuple[Command, ...]) -> None:
    """Order no more in one step than a few things for each request, order, instance and model there is."""
    things = len(before.requests) + len(books.requests) + len(before.instances) + len(books.catalog.models)
    if len(commands) > 16 + 6 * (things + len(books.orders)):
        broken("commands_bounded", f"{len(commands)} commands for {things} things")


def nothing_waits_beside_a_free_slot(books: Books) -> None:
    """Let nobody wait while the model has a ready instance with a free slot."""
    for instance in books.instances.values():
        spec = books.catalog.models.get(instance.model)
        if spec and instance.serves and len(instance.in_flight) < spec.concurrency and books.waiting(instance.model):
            broken("nothing_dropped", f"{books.waiting(instance.model)[0]} waits beside {instance}")


def nobody_waits_for_an_empty_node(books: Books) -> None:
    """Load for whoever waits if nothing at all is on the node."""
    if books.draining or books.catalog.settings.mode is Mode.MANUAL or books.instances:
        return
    for request in books.requests.values():
        cooling = books.cooling_until.get(request.model, Instant(0)) > books.now
        spec = books.catalog.models.get(request.model)
        if spec is not None and books.weights.missing(spec):
            continue
        if request.phase is Phase.WAITING and not cooling and (spec is None or books.fits_surely(spec)):
            broken("nothing_dropped", f"{request} waits, and the node is empty")


def patience_ends(books: Books) -> None:
    """Give room to a head that has waited out the protection if all residents are idle and unpinned."""
    settings = books.catalog.settings
    if books.draining or settings.mode is Mode.MANUAL or settings.protect_max_wait is None:
        return
    if settings.min_residency or settings.min_residency_load_times:
        return
    if not books.instances or not all(_idle(books, instance) for instance in books.instances.values()):
        return
    for request in books.requests.values():
        spec = books.catalog.models.get(request.model)
        cooling = books.cooling_until.get(request.model, Instant(0)) > books.now
        if request.phase is not Phase.WAITING or spec is None or cooling or not books.feasible(spec):
            continue
        if not books.fits_surely(spec) or books.weights.missing(spec):
            continue
        resident = any(i.model == request.model for i in books.instances.values())
        if not resident and books.now - request.arrived > settings.protect_max_wait:
            broken("protection_is_bounded", f"{request} still waits, and everybody else is idle")


def deadlines_are_kept(books: Books, event: Event, next_wakeup: Instant | None) -> None:
    """Let nobody wait beyond the published promise; wake up in time to say so."""
    waiting = [r for r in books.requests.values() if r.phase is Phase.WAITING]
    if isinstance(event, Tick):
        late = [r for r in waiting if books.deadline(r) <= books.now and not r.failed_once]
        if late:
            broken("liveness", f"unanswered after their deadline: {late}")
        if next_wakeup is not None and next_wakeup <= books.now:
            broken("commands_bounded", f"woken at {books.now}, the core wants to be woken at {next_wakeup}")
    first = min((books.deadline(r) for r in waiting if not r.failed_once), default=None)
    if first is not None and (next_wakeup is None or next_wakeup > max(first, books.now)):
        broken("liveness", f"next wake-up at {next_wakeup}, a deadline at {first}")


def weights_are_kept(books: Books, kept: Kept, commands: tuple[Command, ...]) -> Kept:
    """Have the cache told what is held and pinned, when it changes, before it is used; return what it knows now."""
    now: Kept = {
        model: (held(books, model), books.pinned(model)) for model, spec in books.catalog.models.items() if spec.fetched
    }
    removed = (model for model in kept if model not in books.catalog.models and held(books, model))
    now.update((model, (True, False)) for model in removed)
    now.update((model, None) for model in now if _is_open(books, model))
    told = [number for number, command in enumerate(commands) if isinstance(command, KeepWeights)]
    used = [number for number, c in enumerate(commands) if isinstance(c, FetchWeights | RefetchWeights | Start)]
    sure = {model: how for model, how in now.items() if None not in (how, kept.get(model, (False, False)))}
    changed = any(kept.get(model, (False, False)) != how for model, how in sure.items())
    if changed and not told:
        broken("weights_are_kept_before_use", f"told were {kept}, and it is {now}")
    if len(told) > 1 or (told and used and used[0] < told[0]):
        broken("weights_are_kept_before_use", f"told twice or too late: {commands}")
    return now


def _is_open(books: Books, model: ModelName) -> bool:
    """Say whether nothing but waiters holds a copy that may be given up: then it is the core's to say."""
    alive = any(instance.model == model for instance in books.instances.values())
    return books.weights.may_be_given_up(model) and not alive


def standings_are_true(books: Books, standings: Mapping[ModelName, WeightStanding]) -> None:
    """Say of every model with a source whether it is held and pinned."""
    for model, spec in books.catalog.models.items():
        if (
            spec.fetched
            and not _is_open(books, model)
            and (standings[model].held, standings[model].pinned)
            != (
                held(books, model),
                books.pinned(model),
            )
        ):
            broken("weights_are_kept_before_use", f"{model}: {standings[model]}")


def missing_weights_are_fetched(books: Books) -> None:
    """Let nobody wait for weights that nobody fetches."""
    if books.draining:
        return
    manual = books.catalog.settings.mode is Mode.MANUAL
    for model, spec in books.catalog.models.items():
        absent = not any(i.model == model and i.state is not State.UNLOADING for i in books.instances.values())
        waits = absent and (books.load_orders(model) or (books.waiting(model) and not manual))
        lacks = spec.fetched and model not in books.weights.cached
        helped = model in books.weights.fetches or model in books.weights.checks
        cooling = books.cooling_until.get(model, Instant(0)) > books.now
        if lacks and (waits or prefetches(books, model)) and not helped and not cooling:
            broken("missing_weights_are_fetched", f"{model} is wanted, and nothing is done")


def one_model_is_shown_as_among_all(scheduler: Scheduler, view: NodeView) -> None:
    """Tell of one model what the whole view tells of it."""
    for shown in view.models:
        alone, offer = scheduler.model(shown.model, view.at), scheduler.offer(shown.model, view.at)
        if (alone, offer) != (shown, offer_of(shown)):
            broken("one_model_is_shown_as_among_all", f"{shown} is {alone} by itself, and offered as {offer}")


def nothing_dropped(books: Books, view: NodeView) -> None:
    """Know of exactly the requests that wait and are served."""
    for model in view.models:
        queued, waiting = sum(model.queued.values()), len(books.waiting(model.model))
        if queued != waiting:
            broken("nothing_dropped", f"{model.model}: in the core's queue {queued}, clients that wait {waiting}")
    for instance in view.instances:
        served = [r for r in books.instances[instance.instance].in_flight if not books.requests[r].cut]
        if instance.in_flight != len(served):
            broken("nothing_dropped", f"{instance} serves {served}")
    known = {model.model for model in view.models}
    lost = [r for r in books.requests.values() if r.phase is Phase.WAITING and r.model not in known]
    if lost:
        broken("nothing_dropped", f"the core does not know the models of {lost}")


def _evictions(commands: tuple[Command, ...]) -> list[Evicted]:
    return [c for c in commands if isinstance(c, Evicted) and c.cause is UnloadCause.EVICTED]


def _promised(instance: Instance) -> bool:
    """Whether an instance's room may stay taken for long."""
    return instance.state is not State.UNLOADING


def _idle(books: Books, instance: Instance) -> bool:
    quiet = instance.serves and not instance.in_flight
    return quiet and not books.pinned(instance.model) and not books.waiting(instance.model)


def _indices(note: Transitioned) -> list[int]:
    return [gpu for gpu in range(note.gpus.bit_length()) if note.gpus >> gpu & 1]
