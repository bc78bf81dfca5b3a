"""What is warned about although it works."""

from collections.abc import Callable

import pytest

from swapd.config import Loaded

Understood = Callable[[str], Loaded]

OK = 'command: [./serve, "{port}"], memory: 1GiB'


def warnings(loaded: Loaded) -> list[str]:
    return [f"{warning.line}: {warning.message}" for warning in loaded.warnings]


def test_an_ordinary_configuration_has_no_warning(understood: Understood) -> None:
    assert warnings(understood(f"models: {{a: {{{OK}, pin: true}}, b: {{{OK}}}}}")) == []


def test_a_load_that_takes_longer_than_anybody_may_wait_is_warned_about(understood: Understood) -> None:
    loaded = understood(f"""
        models:
          a: {{{OK}, load_estimate: 84s,
              max_wait: 60s}}
        """)
    assert warnings(loaded) == [
        "5: `models.a.max_wait`: raise it or pin a: loading takes about 1m24s, and a request may wait 1m"
    ]


def test_pins_on_more_than_a_quarter_of_the_devices_are_warned_about(understood: Understood) -> None:
    loaded = understood(f"models:\n  a: {{{OK}, pin: true}}\n  b: {{{OK}, pin: true}}\n")
    sentence = "consider fewer pins: a, b take 2 of 4 devices, and above a quarter all other models wait longer"
    assert warnings(loaded) == [f"4: `models.b.pin`: {sentence}"]


@pytest.mark.parametrize(("most", "warned"), [(1, False), (2, True)])
def test_a_node_that_may_pin_much_by_itself_is_warned_about(understood: Understood, most: int, warned: bool) -> None:
    loaded = understood(f"scheduling: {{on_thrash: pin, max_pinned_gpus: {most}}}")
    reason = f"the node may pin {most} of 4 devices by itself, and above a quarter all other models wait longer"
    expected = [f"2: `scheduling.max_pinned_gpus`: consider 1: {reason}"] if warned else []
    assert warnings(loaded) == expected


@pytest.mark.parametrize(("gpus", "others"), [(3, "2 or 4"), (5, "4 or 8"), (12, "8 or 16")])
def test_a_number_of_gpus_that_few_models_divide_by_is_warned_about(
    understood: Understood, gpus: int, others: str
) -> None:
    loaded = understood(f"devices: auto\nmodels: {{a: {{{OK}, gpus: {gpus}}}}}")
    reason = f"few models divide evenly by {gpus}, and NVLink domains are cut into halves"
    assert warnings(loaded) == [f"2: `models.a.gpus`: consider {others}: {reason}"]


@pytest.mark.parametrize("gpus", [1, 2, 4, 8, 16])
def test_a_power_of_two_gpus_is_not_warned_about(understood: Understood, gpus: int) -> None:
    assert warnings(understood(f"devices: auto\nmodels: {{a: {{{OK}, gpus: {gpus}, pin: true}}}}")) == []


def test_endless_protection_is_warned_about(understood: Understood) -> None:
    sentence = "consider a duration such as 15s: with never, models in steady use keep others waiting without end"
    assert warnings(understood("scheduling: {protect_max_wait: never}")) == [
        f"2: `scheduling.protect_max_wait`: {sentence}"
    ]


def test_pins_whose_sizes_do_not_combine_are_warned_about(understood: Understood) -> None:
    shared = 'command: [./serve, "{port}"], memory: 5GiB, exclusive: false, pin: true'
    models = "".join(f"  m{number}: {{{shared}}}\n" for number in range(5))
    loaded = understood(f"models:\n{models}")
    assert [line for line in warnings(loaded) if "no way was found to keep all of m0, m1, m2, m3, m4 loaded" in line]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_pins_that_can_share_are_not_warned_about_as_if_they_could_not(understood: Understood, count: int) -> None:
    shared = 'command: [./serve, "{port}"], memory: 2GiB, exclusive: false, pin: true'
    models = "".join(f"  m{number}: {{{shared}}}\n" for number in range(count))
    assert warnings(understood(f"models:\n{models}")) == []
