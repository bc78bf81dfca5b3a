"""Small deliberate bugs in what the core does with real GPUs, each planted by its name. The suite must catch each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from swapd.core.catalog import NvlinkUse
from swapd.core.commands import ReadMemory
from swapd.core.ids import Bytes, Instant
from swapd.core.node import Node
from swapd.core.reasons import ReleaseEvidence, State
from swapd.core.state import Instance, Need
from swapd.core.suitable import mask
from swapd.core.wiring import Wiring
from tests.properties.nodes import HALF_TOLD, REAL, RINGED, TIGHT, Place
from tests.properties.planting import Function, exchange, instead

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
#: each with the nodes on which it shows soonest
BUGS: list[tuple[Plant, tuple[Place, ...]]] = []

_EVER = Instant(-1 << 60)


def bug(*places: Place) -> Callable[[Plant], Plant]:
    """Return what enters a bug in the list."""

    def enter(plant: Plant) -> Plant:
        BUGS.append((plant, places or REAL))
        return plant

    return enter


def with_instance(**changes: Any) -> Callable[[Function], Function]:
    """Return a maker of functions that see an instance, their second argument, with other values."""

    def make(original: Function) -> Function:
        def bad(subject: Any, instance: Instance) -> Any:
            kept = {name: getattr(instance, name) for name in changes}
            for name, value in changes.items():
                setattr(instance, name, value)
            try:
                return original(subject, instance)
            finally:
                for name, value in kept.items():
                    setattr(instance, name, value)

        return bad

    return make


def with_instance_kept(attribute: str) -> Callable[[Function], Function]:
    """Return a maker of functions after which an instance, their second argument, has the value it had before."""

    def make(original: Function) -> Function:
        def bad(node: Any, instance: Instance) -> None:
            kept = getattr(instance, attribute)
            original(node, instance)
            setattr(instance, attribute, kept)

        return bad

    return make


@bug()
def memory_is_free_with_the_end_of_the_engine(patch: Patch) -> None:
    exchange(patch, "_evidence", instead(lambda *_: ReleaseEvidence.ACCOUNTS))


@bug()
def a_reading_from_before_the_end_frees_memory(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def missing(gpu: Any, instance: Instance) -> Any:
            stopping = instance.stopping
            assert stopping is not None
            kept, stopping.gone_at = stopping.gone_at, _EVER
            try:
                return original(gpu, instance)
            finally:
                stopping.gone_at = kept

        return missing

    exchange(patch, "_missing", bad)


@bug(TIGHT)
def a_loading_neighbour_counts_in_full_at_once(patch: Patch) -> None:
    exchange(patch, "_surely_held", instead(lambda gpu, other: other.charge(gpu.index) if other.holds else 0))


@bug(RINGED)
def what_others_hold_is_overlooked(patch: Patch) -> None:
    exchange(patch, "reckon", instead(lambda _gpu: Bytes(0)))


@bug()
def what_is_not_charged_is_not_there(patch: Patch) -> None:
    exchange(
        patch,
        "is_shown_free",
        instead(lambda gpu, instance: gpu.charged() + instance.bytes_per_gpu <= gpu.memory_bytes),
    )


@bug()
def an_old_reading_opens_the_gate(patch: Patch) -> None:
    def is_shown_free(gpu: Any, instance: Instance) -> bool:
        return gpu.free_bytes is not None and gpu.free_bytes >= instance.bytes_per_gpu

    exchange(patch, "is_shown_free", instead(is_shown_free))


@bug()
def lost_gpus_are_used(patch: Patch) -> None:
    exchange(patch, "suitable", instead(lambda topology, _need, **_how: mask(topology.gpus)))


@bug(HALF_TOLD)
def cordoned_gpus_are_left_alone(patch: Patch) -> None:
    exchange(patch, "_leave", instead(lambda *_: None))


@bug(HALF_TOLD)
def loads_begin_while_the_driver_is_in_trouble(patch: Patch) -> None:
    original = Node.set_topology

    def set_topology(node: Node, topology: Any) -> None:
        original(node, topology)
        node.may_load, node.degraded = True, False

    patch.setattr(Node, "set_topology", set_topology)


@bug(TIGHT)
def leaked_memory_is_given_out(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def charge_what_is_missing(node: Node, gpu: Any, instance: Instance) -> None:
            original(node, gpu, instance)
            instance.leaked[gpu.index] = Bytes(0)

        return charge_what_is_missing

    exchange(patch, "_charge_what_is_missing", bad)


@bug()
def leaked_memory_is_never_looked_at_again(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def confirm(node: Node, instance: Instance) -> None:
            if instance.state is not State.LEAKED:
                original(node, instance)

        return confirm

    exchange(patch, "confirm", bad)


@bug()
def measured_sizes_are_not_charged(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def charge(node: Node, instance: Instance, measured: Bytes) -> None:
            kept = instance.bytes_per_gpu
            original(node, instance, measured)
            instance.bytes_per_gpu = kept

        return charge

    exchange(patch, "_charge", bad)


@bug()
def measured_sizes_are_not_planned_with(patch: Patch) -> None:
    exchange(patch, "plan_with", instead(lambda *_: None))


@bug(RINGED, HALF_TOLD)
def a_size_is_measured_before_the_engine_is_ready(patch: Patch) -> None:
    exchange(patch, "_measure", with_instance(ready_at=_EVER))


@bug()
def host_memory_has_no_end(patch: Patch) -> None:
    exchange(patch, "is_short", instead(lambda *_: False))
    exchange(patch, "lacking", instead(lambda *_: 0))


@bug()
def host_memory_of_ended_engines_stays_charged(patch: Patch) -> None:
    exchange(patch, "nothing_left", with_instance_kept("host_bytes"))


@bug()
def two_products_make_a_set(patch: Patch) -> None:
    original = Wiring.of
    patch.setattr(Wiring, "of", lambda topology: replace(original(topology), products=(0,) * len(topology.gpus)))


@bug()
def any_product_will_do(patch: Patch) -> None:
    exchange(patch, "is_named", instead(lambda *_: True))


@bug()
def a_ring_is_not_asked_for(patch: Patch) -> None:
    original = Need.of

    def of(spec: Any, measured: Bytes | None = None) -> Need:
        return original(spec, measured)._replace(nvlink=NvlinkUse.PREFERRED)

    patch.setattr(Need, "of", of)


@bug()
def rings_are_taken_in_the_order_of_numbers(patch: Patch) -> None:
    exchange(patch, "ring_order", instead(lambda _links, gpus: tuple(sorted(gpus))))


@bug()
def readings_are_ordered_without_end(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def ask(node: Node) -> None:
            original(node)
            if node.asking.since is not None and not any(isinstance(c, ReadMemory) for c in node.out):
                node.out.append(ReadMemory())

        return ask

    exchange(patch, "ask", bad)


@bug()
def two_engines_load_at_once(patch: Patch) -> None:
    exchange(patch, "fits_now", instead(lambda *_: True))
