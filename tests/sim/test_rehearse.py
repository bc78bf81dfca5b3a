"""Where models would go: what the core decides when engines load and leave in no time."""

from dataclasses import replace
from pathlib import Path

from swapd.core.catalog import Catalog, Footprint, Mode, ModelSpec, NvlinkUse, SchedulingSettings
from swapd.core.ids import Bytes, GpuSet, ModelName
from swapd.core.reasons import PlacementQuality
from swapd.core.topology import Gpu, NodeTopology
from swapd.core.unplaceable import why_unplaceable
from swapd.gpus.fixture_node import topology_of
from swapd.sim.rehearse import Place, rehearse

GIB = 1 << 30
NODE = NodeTopology(tuple(Gpu(index, f"virtual-{index}", Bytes(8 * GIB)) for index in range(4)))


def model(name: str, gpus: int = 1, gib: int = 1, *, pinned: bool = False, exclusive: bool = True) -> ModelSpec:
    return ModelSpec(ModelName(name), Footprint(gpus, Bytes(gib * GIB), exclusive), pinned=pinned)


def places(*models: ModelSpec, mode: Mode = Mode.AUTO, on: NodeTopology = NODE) -> dict[str, Place]:
    catalog = Catalog({spec.name: spec for spec in models}, SchedulingSettings(mode=mode))
    found = rehearse(on, catalog)
    assert [place.model for place in found] == list(catalog.models)
    return {str(place.model): place for place in found}


def gpus(found: dict[str, Place]) -> dict[str, int]:
    return {name: int(place.gpus) for name, place in found.items()}


def test_models_do_not_stand_in_each_other_s_way_but_pins_do() -> None:
    found = places(model("a", 2), model("b", 2, pinned=True), model("c", 1), model("d", 4), model("e", 2))
    assert gpus(found) == {"a": 0b1100, "b": 0b0011, "c": 0b0100, "d": 0, "e": 0b1100}
    wants = "d needs 4 GPUs with 1 GiB each"
    assert found["d"].why == f"{wants}; pinned models are in the way (b), unpin one or use another node"
    assert [place.why for place in found.values() if place.gpus] == [""] * 4


def test_what_the_node_can_never_hold_says_so() -> None:
    found = places(model("large", gib=9), model("wide", 5))
    assert gpus(found) == {"large": 0, "wide": 0}
    assert "this node can never hold that" in found["large"].why
    assert "needs 5 GPUs" in found["wide"].why


def test_pins_that_cannot_all_stay_are_told_from_those_that_can() -> None:
    found = places(*(model(f"m{number}", 2, pinned=True) for number in range(3)))
    assert sorted(place.gpus.bit_count() for place in found.values()) == [0, 2, 2]
    (left_out,) = [place for place in found.values() if not place.gpus]
    assert "pinned models are in the way" in left_out.why


def test_more_pins_than_may_load_at_once_are_all_placed() -> None:
    found = places(*(model(f"m{number}", pinned=True) for number in range(4)))
    assert GpuSet(sum(place.gpus for place in found.values())) == 0b1111


def test_a_node_in_manual_mode_is_rehearsed_all_the_same() -> None:
    found = places(model("a"), model("b", pinned=True), mode=Mode.MANUAL)
    assert gpus(found) == {"a": 0b0010, "b": 0b0001}


def machine(prefix: str) -> NodeTopology:
    """Return one of the topology matrices: 80 GiB GPUs, of which 79.5 GiB can be had."""
    (path,) = (Path(__file__).parents[1] / "data" / "topologies").glob(f"{prefix}_*.txt")
    return topology_of(path.read_text())


def test_on_real_wiring_pins_leave_whole_pairs_to_others_and_every_place_has_its_quality() -> None:
    bridged = machine("05")  # bridges {05}{12}{34}{67}
    found = places(model("pin", pinned=True), model("pair", 2), model("four", 4), on=bridged)
    assert found["pin"].quality is PlacementQuality.SINGLE
    assert int(found["pin"].gpus) in (0b1, 0b100000)
    assert (int(found["pair"].gpus), found["pair"].quality) == (0b110, PlacementQuality.TOP)
    assert found["four"].quality is PlacementQuality.TOP


def test_what_has_no_place_on_an_empty_node_is_told_in_the_core_s_own_words() -> None:
    without_nvlink, node = machine("13"), machine("03")
    ring = replace(model("ring", 2), nvlink=NvlinkUse.REQUIRED)
    wide = model("wide", 16)
    for topology, spec in ((without_nvlink, ring), (node, wide)):
        why = places(spec, on=topology)[str(spec.name)].why
        assert why
        assert why == why_unplaceable(topology, spec, SchedulingSettings())
    assert places(ring, on=node)["ring"].quality is PlacementQuality.TOP


def test_memory_that_others_hold_now_and_a_driver_that_must_be_asked_do_not_matter() -> None:
    assert [gpu.measured for gpu in machine("03").gpus] == [True] * 8
    found = places(model("a", 8), model("b", 8), on=machine("03"))
    assert gpus(found) == {"a": 0xFF, "b": 0xFF}


def test_host_memory_that_pins_have_taken_is_not_there_for_others() -> None:
    def with_host(name: str, gib: int, *, pinned: bool = False) -> ModelSpec:
        spec = model(name, pinned=pinned)
        return replace(spec, footprint=replace(spec.footprint, host_bytes=Bytes(gib * GIB)))

    node = replace(NODE, host_bytes=Bytes(64 * GIB))
    found = places(with_host("pin", 40, pinned=True), with_host("fits", 24), with_host("large", 25), on=node)
    assert [name for name, place in found.items() if place.why] == ["large"]
    assert "pinned models are in the way (pin)" in found["large"].why
