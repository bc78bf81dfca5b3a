"""States the laws of memory and devices: where a model may start, when its memory is free again, what is promised."""

from itertools import pairwise

from swapd.core.commands import Command, FootprintMeasured, Start, Transitioned
from swapd.core.events import Event, GpuMemoryRead
from swapd.core.ids import gpu_indices
from swapd.core.reasons import State
from swapd.core.topology import GpuHealth
from swapd.core.view import NodeView
from tests.properties.books import Books, Instance
from tests.properties.broken import broken


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
    need = books.need(order.spec)
    for gpu in gpu_indices(order.gpus):
        if not books.devices.tells(gpu):
            continue
        taken, memory = books.devices.read.get(gpu, (None, None))
        if taken is None or memory is None or taken < instance.since or memory.free_bytes < need:
            broken("shown_free", f"{order}: wants {need} on GPU {gpu}, booked at {instance.since}, last read {memory}")


def host_memory_suffices(books: Books, order: Start) -> None:
    """Start only if the host's memory holds the engine beside those that live."""
    limit = books.devices.topology.host_bytes
    others = [i for i in books.instances.values() if i.started is not None and i.gone is None and not i.engine_gone]
    taken = sum(i.spec.footprint.host_bytes for i in others if i.spec)
    if limit is not None and order.spec.footprint.host_bytes and taken + order.spec.footprint.host_bytes > limit:
        broken("host_memory", f"{order}: {taken} of {limit} are taken")


def was_shown_free(books: Books, instance: Instance) -> bool:
    """Say whether the driver has spoken of every GPU since the processes ended, where it can speak at all."""
    for gpu in gpu_indices(instance.gpus):
        if not books.devices.tells(gpu) or books.devices.topology.gpus[gpu].health is GpuHealth.FAILED:
            if not instance.engine_gone:
                return False
        elif instance.gone is None or gpu not in books.devices.read or books.devices.read[gpu][0] < instance.gone:
            return False
    return True


def promises_fit(books: Books, commands: tuple[Command, ...]) -> None:
    """Promise a GPU to no more than fit on it, as far as sizes are known; leaked memory counts."""
    booked = 0
    for note in commands:
        if isinstance(note, Transitioned) and note.before is None:
            booked |= note.gpus
    for gpu in gpu_indices(booked):
        here = [i for i in books.instances.values() if i.gpus >> gpu & 1 and i.state is not State.UNLOADING]
        alone = len(here) < 2 or not any(i.spec.footprint.exclusive for i in here if i.spec)
        if not alone or sum(i.charge for i in here) > books.devices.capacity(gpu):
            broken("no_overcommit", f"GPU {gpu} is promised to {here}")


def sizes_are_measured(books: Books, event: Event, commands: tuple[Command, ...]) -> None:
    """Measure an engine with the first reading of all of its GPUs that was made after it was ready."""
    if not isinstance(event, GpuMemoryRead):
        return
    told = {note.instance for note in commands if isinstance(note, FootprintMeasured)}
    for instance in books.instances.values():
        due = instance.ready is not None and instance.ready <= event.taken and instance.state is State.READY
        seen = all(gpu in books.devices.read and books.devices.tells(gpu) for gpu in gpu_indices(instance.gpus))
        if due and seen and not instance.measured and instance.id not in told:
            broken("measured_when_ready", f"{instance} has been ready since {instance.ready}, read at {event.taken}")


def sizes_are_charged(books: Books, view: NodeView) -> None:
    """Charge every instance what it is known to take."""
    for shown in view.instances:
        charge = books.instances[shown.instance].charge
        if shown.bytes_per_gpu != charge:
            broken("measured_is_charged", f"{shown} is known to take {charge}")
