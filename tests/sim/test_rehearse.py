"""Where models would go: what the core decides when engines load and leave in no time."""

from swapd.core.catalog import Catalog, Footprint, Mode, ModelSpec, SchedulingSettings
from swapd.core.ids import Bytes, GpuSet, ModelName
from swapd.core.topology import Gpu, NodeTopology
from swapd.sim.rehearse import Place, rehearse

GIB = 1 << 30
NODE = NodeTopology(tuple(Gpu(index, f"virtual-{index}", Bytes(8 * GIB)) for index in range(4)))


def model(name: str, gpus: int = 1, gib: int = 1, *, pinned: bool = False, exclusive: bool = True) -> ModelSpec:
    return ModelSpec(ModelName(name), Footprint(gpus, Bytes(gib * GIB), exclusive), pinned=pinned)


def places(*models: ModelSpec, mode: Mode = Mode.AUTO) -> dict[str, Place]:
    catalog = Catalog({spec.name: spec for spec in models}, SchedulingSettings(mode=mode))
    found = rehearse(NODE, catalog)
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
