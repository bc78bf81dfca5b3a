"""What a model's settings say about its requests reaches the front door."""

from swapd.agent.directory import Directory
from swapd.config.schema import Settings
from swapd.core.ids import ModelName, seconds
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
