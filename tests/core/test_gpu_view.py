"""What the view tells of GPUs: free, foreign and booked memory, health, and what could still be taken."""

from swapd.core.ids import GpuSet
from swapd.core.topology import GpuHealth
from tests.core.driver import World, spec
from tests.core.gpus import GpuWorld, gib, linked, node


def test_a_virtual_node_has_no_links_and_single_free_devices() -> None:
    world = World([spec("a", load=10)], gpus=3)
    world.request("a", at=0)
    world.run(20)
    free = world.core.view().free
    assert (free.gpus, free.largest_nvlink_block, free.largest_nvlink_set) == (0b110, 1, 0b010)
    assert (free.largest_clique.bit_count(), free.whole_domains, free.fragmented_domains) == (1, (), ())
    assert [gpu.free_bytes for gpu in world.core.view().gpus] == [None] * 3


def test_an_empty_node_without_gpus_can_be_looked_at() -> None:
    free = World(gpus=0).core.view().free
    assert (free.gpus, free.largest_nvlink_block, free.largest_clique) == (0, 0, 0)


def test_domains_are_whole_while_all_or_none_of_their_gpus_are_free() -> None:
    devices = node(8, links=linked(8, range(4), range(4, 8)))
    world = GpuWorld([spec("a", gib=60, load=10), spec("t", 4, gib=60, load=10)], devices=devices)
    world.request("t", at=0)
    world.run(20)
    free = world.core.view().free
    assert (free.whole_domains, free.fragmented_domains) == ((0x0F, 0xF0), ())
    assert (free.largest_nvlink_block, free.largest_nvlink_set.bit_count()) == (4, 4)
    world.request("a", at=30)
    world.run(60)
    free = world.core.view().free
    assert len(free.fragmented_domains) == 1
    assert free.largest_clique.bit_count() == 3
    assert free.largest_nvlink_block == 2


def test_gpus_that_are_lost_leaked_or_used_by_others_are_not_free() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(4))
    world.lists = False
    world.turn(0, GpuHealth.LOST, at=0)
    world.others_take(1, 2, at=0)
    world.others_take(2, 0.5, at=0)
    world.read(1)
    world.run(2)
    assert world.core.view().free.gpus == 0b1100
    assert [gpu.foreign_bytes for gpu in world.core.view().gpus] == [0, gib(2), gib(0.5), 0]
    assert world.gpu(0).health is GpuHealth.LOST
    assert world.gpu(0).free_bytes is None


def test_what_is_booked_is_shown_per_gpu_with_its_models() -> None:
    models = [spec(name, gib=10, load=10, shares=True) for name in "ab"]
    world = GpuWorld(models, devices=node(1))
    world.request("a", at=0)
    world.request("b", at=1)
    world.run(5)
    gpu = world.gpu(0)
    assert (gpu.reserved_bytes, gpu.models) == (gib(20), ("a", "b"))
    assert GpuSet(1) & world.core.view().free.gpus == 0
