"""States the laws of memory and devices: where a model may start, when its memory is free again, what is promised."""

from itertools import pairwise

from swapd.core.commands import Command, Start, Transitioned
from swapd.core.ids import gpu_indices
from swapd.core.reasons import State
from swapd.core.view import NodeView
from tests.properties.books import Books, Instance
from tests.properties.broken import broken

_LEAVING = (State.UNLOADING, State.LEAKED)
_STAYING = (State.RESERVED, State.LOADING, State.READY)


def starts_on_legal_gpus(books: Books, order: Start) -> None:
    """Start on sound GPUs of one product and of the kind that was asked for, named in the order of their best ring."""
    devices = books.devices
    if not devices.up:
        broken("placeable_only", f"{order} while the driver is {devices.topology.driver}")
    if order.gpus & ~devices.topology.placeable:
        broken("placeable_only", f"{order}: {[(g.index, g.health) for g in devices.topology.gpus]}")
    if order.gpus not in set(devices.sets(order.spec)):
        broken("legal_sets", f"{order} on {[g.name for g in devices.topology.gpus]}")
    place = {gpu.uuid: gpu.index for gpu in devices.topology.gpus}
    ring = [place[uuid] for uuid in order.devices]
    if sorted(ring) != list(gpu_indices(order.gpus)):
        broken("legal_sets", f"{order} names other devices")
    if len(ring) > 1:
        links = devices.topology.links
        worst = min(links[one][two] for one, two in pairwise([*ring, ring[0]])) if links else 0
        if worst < devices.ring(order.gpus):
            broken("legal_sets", f"{order}: there is a better ring")


def starts_into_free_memory(books: Books, order: Start, instance: Instance) -> None:
    """Start only after a reading, made since the room was booked, has shown enough free on each GPU."""
    need = instance.charge
    for gpu in gpu_indices(order.gpus):
        if not books.devices.tells(gpu):
            continue
        taken, memory = books.devices.read.get(gpu, (None, None))
        if taken is None or memory is None or taken < instance.booked or memory.free_bytes < need:
            broken("shown_free", f"{order}: wants {need} on GPU {gpu}, booked at {instance.booked}, last read {memory}")


def host_memory_suffices(books: Books, order: Start) -> None:
    """Start only if the host's memory holds the engine beside those that live."""
    limit = books.devices.topology.host_bytes
    others = [i for i in books.instances.values() if i.started is not None and i.gone is None and not i.engine_gone]
    taken = sum(i.spec.footprint.host_bytes for i in others if i.spec)
    if limit is not None and order.spec.footprint.host_bytes and taken + order.spec.footprint.host_bytes > limit:
        broken("host_memory", f"{order}: {taken} of {limit} are taken")


def cordons_are_cleared(books: Books) -> None:
    """Leave nobody who could leave on a GPU that must not be used, unless the driver cannot be asked."""
    if not books.devices.up:
        return
    for instance in books.instances.values():
        if instance.state in _STAYING and instance.gpus & ~books.devices.topology.placeable:
            broken("placeable_only", f"{instance} stays on a GPU that must not be used")


def promises_fit(books: Books, commands: tuple[Command, ...]) -> None:
    """Promise a GPU to no more than fit on it, as far as sizes are known; what has leaked is for others to judge."""
    booked = 0
    for note in commands:
        if isinstance(note, Transitioned) and note.before is None:
            booked |= note.gpus
    for gpu in gpu_indices(booked):
        here = [i for i in books.instances.values() if i.gpus >> gpu & 1 and i.state not in _LEAVING]
        alone = len(here) < 2 or not any(i.spec.footprint.exclusive for i in here if i.spec)
        if not alone or sum(i.charge for i in here) > books.devices.capacity(gpu):
            broken("no_overcommit", f"GPU {gpu} is promised to {here}")


def sizes_are_charged(books: Books, view: NodeView) -> None:
    """Charge every instance what it is known to take, and host memory until nothing of it is left."""
    host = sum(i.spec.footprint.host_bytes for i in books.instances.values() if i.spec and not i.engine_gone)
    if view.host_booked_bytes != host:
        broken("host_memory", f"{view.host_booked_bytes} are booked, {host} are taken or promised")
    for shown in view.instances:
        charge = books.instances[shown.instance].charge
        if shown.bytes_per_gpu != charge:
            broken("measured_is_charged", f"{shown} is known to take {charge}")
