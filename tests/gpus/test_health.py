"""Which GPUs are out of reach or broken, and when they are taken back: one table of signs after the other."""

from dataclasses import replace

import pytest

from swapd.core.ids import Bytes
from swapd.core.topology import Gpu, GpuHealth
from swapd.gpus.health import (
    Answer,
    Condition,
    Patience,
    Signs,
    after_discovery,
    after_poll,
    after_xid,
    driver_failed,
    with_condition,
)
from swapd.gpus.xid import APPLICATION_XIDS, HARDWARE_XIDS, XidKind, kind_of, sentence

PATIENCE = Patience(bad=3, clean=4)
FINE = Signs(Answer.READ, recovery=0, remap_pending=False, uncorrectable=0)
UNKNOWN = Signs(Answer.ERROR, "NVML answered Unknown (999) to DeviceGetMemoryInfo")
LOST = Signs(Answer.LOST, "NVML answered GpuIsLost (15) to DeviceGetMemoryInfo")
GPU = Gpu(index=0, uuid="GPU-0", memory_bytes=Bytes(80 << 30), nvlinks=18, nvlinks_expected=18)


def after(condition: Condition, *polls: Signs) -> Condition:
    """Return the condition after these polls in a row."""
    for signs in polls:
        condition = after_poll(condition, signs, PATIENCE)
    return condition


@pytest.mark.parametrize("xid", sorted(APPLICATION_XIDS))
def test_an_xid_of_an_application_leaves_the_gpu_in_service(xid: int) -> None:
    assert kind_of(xid) is XidKind.APPLICATION
    assert after_xid(Condition(), xid, GPU) == Condition()


@pytest.mark.parametrize("xid", [48, 62, 64, 74, 79, 95, 119, 120, 140])
def test_an_xid_of_the_hardware_fails_the_gpu_and_says_what_to_do(xid: int) -> None:
    condition = after_xid(Condition(), xid, GPU)
    marked = with_condition(GPU, condition)
    assert marked.health is GpuHealth.FAILED
    assert marked.why == sentence(xid)
    assert marked.why.startswith(f"Xid {xid}, ")
    assert "reset" in marked.why or "reboot" in marked.why


def test_no_xid_is_both_an_applications_and_the_hardwares() -> None:
    assert [xid for xid in HARDWARE_XIDS if xid in APPLICATION_XIDS] == []


@pytest.mark.parametrize("xid", [63, 94, 145, 154, 9_999])
def test_an_xid_whose_number_does_not_decide_leaves_the_gpu_in_service(xid: int) -> None:
    assert kind_of(xid) is XidKind.UNDECIDED
    assert after_xid(Condition(), xid, GPU) == Condition()


def test_a_gpu_that_says_it_is_lost_is_lost_at_once() -> None:
    marked = with_condition(GPU, after(Condition(), LOST))
    assert (marked.health, marked.why) == (
        GpuHealth.LOST,
        "NVML answered GpuIsLost (15) to DeviceGetMemoryInfo; look for Xid 79 in the kernel log",
    )


def test_another_error_must_come_several_times_in_a_row() -> None:
    assert after(Condition(), UNKNOWN, UNKNOWN).sound
    assert after(Condition(), UNKNOWN, UNKNOWN, FINE, UNKNOWN, UNKNOWN).sound
    assert after(Condition(), UNKNOWN, UNKNOWN, UNKNOWN).lost == (
        "cannot be read: NVML answered Unknown (999) to DeviceGetMemoryInfo, 3 polls in a row; look at the kernel log"
    )


def test_a_lost_gpu_is_taken_back_after_clean_polls_in_a_row_and_not_before() -> None:
    lost = after(Condition(), LOST)
    assert not after(lost, FINE, FINE, FINE).ripe(PATIENCE)
    assert not after(lost, FINE, FINE, FINE, UNKNOWN, FINE, FINE, FINE).ripe(PATIENCE)
    ripe = after(lost, FINE, FINE, FINE, FINE)
    assert ripe.ripe(PATIENCE)
    assert after_discovery(ripe, GPU, PATIENCE).sound


def test_a_gpu_that_breaks_again_must_be_clean_for_twice_as_long() -> None:
    condition = Condition()
    for needed in (4, 8, 16, 32, 64, 128, 256, 256):
        condition = after_xid(condition, 62, GPU)
        assert not after(condition, *[FINE] * (needed - 1)).ripe(PATIENCE)
        condition = after_discovery(after(condition, *[FINE] * needed), GPU, PATIENCE)
        assert condition.sound


def test_a_discovery_takes_nothing_back_that_was_not_clean_for_long_enough() -> None:
    lost = after(Condition(), LOST, FINE, FINE)
    assert after_discovery(lost, GPU, PATIENCE) == lost


def test_a_gpu_that_a_discovery_cannot_read_must_be_clean_for_as_long_again() -> None:
    ripe = after(Condition(), LOST, FINE, FINE, FINE, FINE)
    again = after_discovery(ripe, replace(GPU, health=GpuHealth.LOST), PATIENCE)
    assert not again.sound
    assert not again.ripe(PATIENCE)


@pytest.mark.parametrize(
    "dirt",
    [
        replace(FINE, remap_pending=True),
        replace(FINE, recovery=1),
        replace(FINE, recovery=3),
        replace(FINE, uncorrectable=1),
    ],
)
def test_a_broken_gpu_stays_so_until_what_speaks_against_it_is_gone(dirt: Signs) -> None:
    broken = after_xid(after(Condition(), FINE), 48, GPU)
    assert not after(broken, *[dirt] * 9).ripe(PATIENCE)
    assert after(broken, *[dirt] * 9, *[FINE] * 4).ripe(PATIENCE)


def test_uncorrectable_errors_from_before_swapd_are_not_held_against_a_gpu() -> None:
    old = replace(FINE, uncorrectable=2)
    broken = after_xid(after(Condition(), old), 74, GPU)
    assert after(broken, *[old] * 4).ripe(PATIENCE)
    assert not after(broken, *[replace(old, uncorrectable=3)] * 4).ripe(PATIENCE)


def test_after_a_reset_the_errors_are_counted_from_0_again() -> None:
    reset = after(Condition(), replace(FINE, uncorrectable=2), FINE)
    broken = after_xid(reset, 48, GPU)
    assert not after(broken, *[replace(FINE, uncorrectable=1)] * 4).ripe(PATIENCE)


def test_what_the_driver_does_not_tell_speaks_against_nobody() -> None:
    silent = Signs(Answer.READ)
    assert after(after_xid(Condition(), 62, GPU), *[silent] * 4).ripe(PATIENCE)


def test_a_fault_is_over_only_when_the_links_are_back() -> None:
    ripe = after(after_xid(Condition(), 74, GPU), *[FINE] * 4)
    fewer = after_discovery(ripe, replace(GPU, nvlinks=17), PATIENCE)
    assert with_condition(GPU, fewer).health is GpuHealth.FAILED
    assert not fewer.ripe(PATIENCE)
    assert after_discovery(after(fewer, *[FINE] * 4), GPU, PATIENCE).sound


def test_a_lost_gpu_comes_back_with_fewer_links_if_it_had_no_fault() -> None:
    ripe = after(Condition(), LOST, *[FINE] * 4)
    assert after_discovery(ripe, replace(GPU, nvlinks=17), PATIENCE).sound


def test_the_driver_itself_can_ask_for_a_reset() -> None:
    marked = with_condition(GPU, after(Condition(), replace(FINE, recovery=1)))
    assert (marked.health, marked.why) == (GpuHealth.FAILED, "the driver asks for a reset of the GPU")


def test_lost_weighs_more_than_broken_and_the_fault_is_still_known_afterwards() -> None:
    both = after(after_xid(Condition(), 79, GPU), LOST)
    assert with_condition(GPU, both).health is GpuHealth.LOST
    back = after_discovery(after(both, *[FINE] * 4), replace(GPU, nvlinks=0), PATIENCE)
    assert with_condition(GPU, back).why == sentence(79)


def test_the_driver_has_failed_when_every_gpu_that_should_answer_fails_alike() -> None:
    sound, lost = Condition(), Condition(lost="lost")
    assert driver_failed([sound, sound], [UNKNOWN, UNKNOWN])
    assert driver_failed([lost, sound], [LOST, UNKNOWN])
    assert not driver_failed([sound, sound], [UNKNOWN, FINE])
    assert not driver_failed([sound, sound], [UNKNOWN, LOST])
    assert not driver_failed([sound, sound], [LOST, LOST])
    assert not driver_failed([lost], [LOST])
    assert not driver_failed([], [])
