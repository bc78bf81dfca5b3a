"""Pitfall 31: short uuids, uuids of partitions, and an order that matters."""

import pytest

from swapd.core.ids import Bytes
from swapd.core.topology import Gpu
from swapd.gpus.visible import VisibleError, visible

GPUS = [Gpu(index, uuid, Bytes(0)) for index, uuid in enumerate(["GPU-8f1a-00", "GPU-8f2b-01", "GPU-1c3d-02", ""])]


def test_pitfall_31_the_order_is_kept_and_a_beginning_is_enough() -> None:
    assert visible("GPU-1c3d-02,GPU-8f1a", GPUS) == (2, 0)
    assert visible(" gpu-ignored ".replace("gpu-ignored", "GPU-8F2B-01"), GPUS) == (1,)
    assert visible("", GPUS) == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("GPU-8f", "several GPUs"),
        ("GPU-", "several GPUs"),
        ("GPU-dead", "no GPU of this node"),
        ("MIG-8f1a-00", "not the uuid of a whole GPU"),
        ("0,1", "not the uuid of a whole GPU"),
        ("GPU-8f1a,GPU-8f1a-00", "named twice"),
        ("GPU-8f1a,rubbish,GPU-1c3d", "'rubbish'"),
    ],
)
def test_pitfall_31_what_does_not_mean_one_gpu_is_refused(text: str, why: str) -> None:
    with pytest.raises(VisibleError, match=why):
        visible(text, GPUS)
