"""What the settings say of a model's requests reaches the front door, and of its start the engine."""

from pathlib import Path

import pytest

from swapd.agent.directory import Directory
from swapd.config.schema import Settings
from swapd.core.ids import ModelName, seconds
from swapd.engines.base import Binding, EngineError
from swapd.proxy.services import RouteOptions


def test_each_model_has_its_own_way_of_being_relayed() -> None:
    model = {"command": ["./serve", "{port}"], "memory": "1GiB"}
    settings = Settings.model_validate(
        {
            "devices": {"virtual": {"count": 1, "memory": "2GiB"}},
            "defaults": {"request_timeout": "10m"},
            "models": {
                "a": model,
                "b": {**model, "request_timeout": "30s", "on_client_abort": "finish"},
                "c": {**model, "request_timeout": "never"},
            },
        }
    )
    directory = Directory(settings, created=0)
    assert [directory.route_options(ModelName(name)) for name in ("a", "b", "c", "gone")] == [
        RouteOptions(request_timeout=seconds(600)),
        RouteOptions(request_timeout=seconds(30), finish_on_abort=True),
        RouteOptions(),
        RouteOptions(),
    ]


@pytest.mark.parametrize(("numa", "binding"), [("auto", Binding(cpus=(0, 1), numa=(0,))), ("off", Binding())])
def test_an_engine_is_started_near_its_gpus_unless_the_configuration_says_no(numa: str, binding: Binding) -> None:
    model = {"command": ["./serve", "{port}"], "memory": "1GiB"}
    directory = Directory(Settings.model_validate({"models": {"a": model}}), created=0)
    directory.apply(Settings.model_validate({"devices": {"numa": numa}, "models": {"a": model}}))
    near = Binding(cpus=(0, 1), numa=(0,))
    made = directory.plan(ModelName("a"), port=20_001, devices=("GPU-0",), binding=near)
    assert made.launch is not None
    assert made.launch.binding == binding


def test_the_engine_of_a_fetched_model_is_given_its_copy(tmp_path: Path) -> None:
    model = {"command": ["./serve", "{port}", "{weights}"], "memory": "1GiB"}
    settings = Settings.model_validate({"models": {"a": {**model, "weights": {"source": "hf://o/a"}}}})
    copies: dict[ModelName, Path] = {}
    directory = Directory(settings, created=0, cached=copies.get)
    with pytest.raises(EngineError, match="the weights of a have left the cache") as refused:
        directory.plan(ModelName("a"), port=20_001, devices=(), binding=Binding())
    assert not refused.value.permanent
    copies[ModelName("a")] = tmp_path / "copy"
    made = directory.plan(ModelName("a"), port=20_001, devices=(), binding=Binding())
    assert made.launch is not None
    assert made.launch.argv[-1] == str(tmp_path / "copy")
