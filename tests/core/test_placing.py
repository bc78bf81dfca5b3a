"""Where a model goes: the cheapest set, then the best joined one, in the order of its ring, of GPUs that suit it."""

from dataclasses import replace

import pytest

from swapd.core.catalog import NvlinkUse
from swapd.core.commands import Placed, Start, Transitioned
from swapd.core.ids import seconds
from swapd.core.reasons import PlacementQuality, Rejection
from swapd.core.topology import Fabric, FabricState, GpuHealth
from tests.core.driver import World, spec
from tests.core.gpus import GpuWorld, gib, linked, node, with_gpu

PAIRS = ((0, 1), (2, 3))


def placed(world: GpuWorld) -> dict[str, PlacementQuality]:
    return {str(c.model): c.quality for _, c in world.log if isinstance(c, Placed)}


def test_one_gpu_goes_to_the_small_model_and_an_nvlink_pair_to_the_large_one() -> None:
    devices = node(5, links=linked(5, (1, 2), (3, 4)))
    world = GpuWorld([spec("a", gib=60, load=10), spec("t", 2, gib=60, load=10)], devices=devices)
    world.request("a", at=0)
    world.request("t", at=1)
    world.run(60)
    assert world.gpus_of("a") == [0]
    assert world.gpus_of("t") in ([1, 2], [3, 4])
    assert placed(world) == {"a": PlacementQuality.SINGLE, "t": PlacementQuality.TOP}


def test_of_equally_dear_victims_those_on_the_better_joined_gpus_leave() -> None:
    models = [spec(name, gib=60, load=10) for name in "abcd"]
    world = GpuWorld([*models, spec("t", 2, gib=60, load=10)], devices=node(4, links=linked(4, *PAIRS)), protect=0)
    for name in "abcd":
        world.request(name, at=0)
    world.run(100)
    for model in world.core._node.models.values():
        model.worth = 1.0
    world.request("t", at=200)
    world.run(260)
    assert world.gpus_of("t") in ([0, 1], [2, 3])


def test_cost_comes_before_topology() -> None:
    models = [spec(name, gib=60, load=10) for name in "abcd"]
    world = GpuWorld([*models, spec("t", 2, gib=60, load=10)], devices=node(4, links=linked(4, *PAIRS)), protect=0)
    for name in "abcd":
        world.request(name, at=0)
    world.run(100)
    where = {world.gpus_of(name)[0]: name for name in "abcd"}
    for gpu, name in where.items():
        world.core._node.models[name].worth = 1.0 if gpu in (0, 2) else 9.0  # type: ignore[index]
    world.request("t", at=200)
    world.run(260)
    assert world.gpus_of("t") == [0, 2]
    assert placed(world)["t"] is PlacementQuality.SPREAD


def test_a_model_that_requires_nvlink_waits_for_a_ring_though_other_gpus_are_free() -> None:
    models = [spec("b", gib=60, load=10), spec("t", 2, gib=60, load=10, nvlink=NvlinkUse.REQUIRED)]
    world = GpuWorld(models, devices=node(4, links=linked(4, (0, 1))))
    world.turn(2, GpuHealth.LOST, at=0)
    world.turn(3, GpuHealth.LOST, at=0)
    world.request("b", at=1, service=50)
    world.turn(2, GpuHealth.HEALTHY, at=20)
    world.turn(3, GpuHealth.HEALTHY, at=20)
    t = world.request("t", at=21)
    world.run(120)
    assert world.gpus_of("t") == [0, 1]
    assert t.granted[0][0] > 51


def test_a_model_that_is_indifferent_to_nvlink_leaves_the_linked_gpus_to_others() -> None:
    models = [spec("t", 2, gib=60, load=10, nvlink=NvlinkUse.IGNORE), spec("u", 2, gib=60, load=10)]
    world = GpuWorld(models, devices=node(4, links=linked(4, (0, 1))))
    world.request("t", at=0)
    world.request("u", at=30)
    world.run(100)
    assert (world.gpus_of("t"), world.gpus_of("u")) == ([2, 3], [0, 1])


def test_an_indifferent_model_takes_victims_on_the_worst_joined_gpus() -> None:
    models = [spec(name, gib=60, load=10) for name in "abcd"]
    odd = spec("t", 2, gib=60, load=10, nvlink=NvlinkUse.IGNORE)
    world = GpuWorld([*models, odd], devices=node(4, links=linked(4, (0, 1))), protect=0)
    for name in "abcd":
        world.request(name, at=0)
    world.run(100)
    for model in world.core._node.models.values():
        model.worth = 1.0
    world.request("t", at=200)
    world.run(260)
    assert world.gpus_of("t") not in ([0, 1], [2, 3])


@pytest.mark.parametrize(
    ("wanted", "got"), [({"gpu_name": "*A100*"}, [1]), ({"gpu_name": "nvidia h100*"}, [0, 2]), ({"gpu_name": "?"}, [])]
)
def test_only_gpus_of_the_wanted_product_are_taken(wanted: dict[str, str], got: list[int]) -> None:
    devices = with_gpu(node(3), 1, name="NVIDIA A100-SXM4-80GB")
    world = GpuWorld([spec(name, gib=60, load=10, **wanted) for name in "abc"], devices=devices, max_concurrent_loads=3)
    asked = [world.request(name, at=0, service=200) for name in "abc"]
    world.run(60)
    taken = sorted(gpu for i in world.core.view().instances for gpu in world.gpus_of(str(i.model)))
    assert taken == got
    assert (asked[0].rejected is None) == bool(got)


def test_only_gpus_of_the_wanted_capability_are_taken() -> None:
    devices = with_gpu(with_gpu(node(3), 0, compute_capability=(8, 0)), 1, compute_capability=None)
    world = GpuWorld([spec("a", gib=60, load=10, min_compute_capability=(8, 9))], devices=devices)
    world.request("a", at=0)
    world.run(60)
    assert world.gpus_of("a") == [2]


def test_a_model_on_two_gpus_never_mixes_products() -> None:
    devices = with_gpu(node(3), 1, name="NVIDIA A100-SXM4-80GB")
    world = GpuWorld([spec("t", 2, gib=60, load=10)], devices=devices)
    world.request("t", at=0)
    world.run(60)
    assert world.gpus_of("t") == [0, 2]


def test_where_the_fabric_is_not_registered_only_single_gpus_are_used_if_so_configured() -> None:
    devices = node(2, fabric=Fabric(FabricState.IN_PROGRESS), links=linked(2, (0, 1)))
    models = [spec("a", gib=60, load=10), spec("t", 2, gib=60, load=10)]
    world = GpuWorld(models, devices=devices, require_fabric=True)
    a, t = world.request("a", at=0), world.request("t", at=100)
    world.run(101)
    assert a.granted
    assert t.rejected is not None
    assert "the NVLink fabric is not registered on GPUs 0, 1" in t.rejected[1].detail
    world.reconfigure(at=110, require_fabric=False)
    again = world.request("t", at=111)
    world.run(200)
    assert again.granted


def test_a_registered_fabric_and_none_at_all_are_no_obstacle() -> None:
    for fabric in (None, Fabric(FabricState.COMPLETED), Fabric(FabricState.UNSUPPORTED)):
        world = GpuWorld([spec("t", 2, gib=60, load=10)], devices=node(2, fabric=fabric), require_fabric=True)
        t = world.request("t", at=0)
        world.run(60)
        assert t.granted


def test_devices_are_named_in_the_order_of_their_ring_with_the_cpus_near_them() -> None:
    rows = [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]
    cross = [[rows[i ^ (i >> 1 & 1)][j ^ (j >> 1 & 1)] for j in range(4)] for i in range(4)]
    devices = node(4, links=cross)
    for index in range(4):
        devices = with_gpu(devices, index, cpus=(10 - index, 20 + index), numa=(index % 2) or -1)
    world = GpuWorld([spec("t", 4, gib=60, load=10)], devices=devices)
    world.request("t", at=0)
    world.run(60)
    (order,) = world.of(Start)
    ring = [int(uuid.removeprefix("GPU-")) for uuid in order.devices]
    assert all(cross[one][two] for one, two in zip(ring, [*ring[1:], ring[0]], strict=True))
    assert order.numa == (1,)
    assert order.cpus == (7, 8, 9, 10, 20, 21, 22, 23)


def test_a_degraded_gpu_is_left_to_single_gpu_models() -> None:
    devices = with_gpu(node(3), 0, health=GpuHealth.DEGRADED)
    world = GpuWorld([spec("t", 2, gib=60, load=10), spec("a", gib=60, load=10)], devices=devices)
    world.request("t", at=0)
    world.request("a", at=1)
    world.run(60)
    assert (world.gpus_of("t"), world.gpus_of("a")) == ([1, 2], [0])


def test_a_gpu_that_is_degraded_later_changes_what_is_preferred() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(2))
    world.turn(1, GpuHealth.DEGRADED, at=1)
    world.request("a", at=2)
    world.run(60)
    assert world.gpus_of("a") == [1]


def test_pinned_models_are_placed_largest_first() -> None:
    models = [
        spec("a", gib=10, load=10, pinned=True),
        spec("b", gib=70, load=10, pinned=True),
        spec("c", 2, gib=10, load=10, pinned=True),
    ]
    world = GpuWorld(models, devices=node(4), max_concurrent_loads=3)
    world.plan(0, lambda: None)
    world.run(60)
    booked = [c.model for _, c in world.log if isinstance(c, Transitioned) and c.before is None]
    assert booked == ["c", "b", "a"]


def test_a_large_pin_finds_its_place_before_the_small_ones_scatter() -> None:
    models = [spec(name, gib=60, load=10, pinned=True) for name in "abc"]
    big = spec("z", 2, gib=60, load=10, pinned=True, nvlink=NvlinkUse.REQUIRED)
    world = GpuWorld([*models, big], devices=node(4, links=linked(4, (0, 1))))
    world.run(200)
    assert world.gpus_of("z") == [0, 1]


def test_a_sharing_model_goes_where_others_are_already() -> None:
    models = [spec(name, gib=10, load=10, shares=True) for name in "abc"]
    world = GpuWorld(models, devices=node(4))
    for at, name in enumerate("abc"):
        world.request(name, at=20 * at)
    world.run(100)
    assert len({tuple(world.gpus_of(name)) for name in "abc"}) == 1


def test_sixteen_devices_do_not_make_the_search_explode() -> None:
    models = [spec(f"m{n}", gib=1, load=1) for n in range(16)]
    world = World([*models, spec("t", 8, load=10)], gpus=16, protect=seconds(0), max_concurrent_loads=16)
    for model in models:
        world.request(model.name, at=0)
    t = world.request("t", at=100)
    world.run(200)
    assert t.granted
    assert len(world.evictions()) == 8


def test_pins_that_split_every_board_leave_a_set_over_both() -> None:
    models = [spec(f"m{n:02}", gib=1, load=1, pinned=n in (3, 12)) for n in range(16)]
    world = World([*models, spec("t", 8, load=10)], gpus=16, protect=seconds(0), max_concurrent_loads=16)
    for model in models:
        world.request(model.name, at=0)
    world.run(50)
    pinned = {gpu for name in ("m03", "m12") for gpu in range(16) if world.model(name).instance.gpus >> gpu & 1}  # type: ignore[union-attr]
    t = world.request("t", at=100)
    world.run(200)
    assert t.granted
    assert not pinned & {gpu for gpu in range(16) if world.model("t").instance.gpus >> gpu & 1}  # type: ignore[union-attr]


def test_boards_follow_the_links() -> None:
    world = GpuWorld([spec("t", 2, gib=60, load=10)], devices=node(4, links=linked(4, (0, 1))))
    world.change(1, links=tuple(map(tuple, linked(4, (2, 3)))))
    world.request("t", at=2)
    world.run(60)
    assert world.gpus_of("t") == [2, 3]


def test_room_for_a_ring_is_not_room_for_any_pair() -> None:
    models = [spec("p", gib=60, load=10, pinned=True), spec("t", 2, gib=60, load=10, nvlink=NvlinkUse.REQUIRED)]
    devices = with_gpu(node(3, links=linked(3, (0, 1))), 2, memory_bytes=gib(40))
    world = GpuWorld(models, devices=devices)
    world.run(30)
    t = world.request("t", at=50)
    world.run(51)
    assert t.rejected is not None
    assert t.rejected[1].reason is Rejection.ALL_PINNED


def test_a_reservation_ends_when_its_gpus_do_not_suit_any_more() -> None:
    models = [spec("a", gib=60, load=10), spec("t", 2, gib=60, load=10)]
    world = GpuWorld(models, devices=node(2, fabric=Fabric(FabricState.COMPLETED)), require_fabric=True)
    world.request("a", at=0, service=400)
    t = world.request("t", at=20)
    world.run(141)
    assert world.core.view().reservation is not None
    gpus = tuple(replace(gpu, fabric=Fabric(FabricState.IN_PROGRESS)) for gpu in world.devices.gpus)
    world.change(150, gpus=gpus)
    world.run(151)
    assert world.core.view().reservation is None
    assert t.rejected is not None
