"""The status document."""

import json

from swapd.admin.status import ConfigInfo, ProcessInfo, status_document
from swapd.aio.turns import at_once
from swapd.core.ids import SECOND, Bytes, Duration, GpuSet, InstanceId, ModelName
from swapd.core.reasons import Stage, State, Verdict, WaitingFor
from swapd.core.view import NodeView, ReservationView
from tests.fakes.control import extras
from tests.fakes.node_views import GIB, at, gpu_view, instance_view, model_view, node_view

Json = dict[str, object]


def document(view: NodeView, **changes: object) -> Json:
    """Build the document and send it through JSON, as a reader gets it."""
    made = at_once(status_document(view, extras(**changes)))
    read: Json = json.loads(json.dumps(made))
    assert read == made
    return read


def model(view: NodeView, **changes: object) -> Json:
    (only,) = document(view, **changes)["models"]  # type: ignore[misc]  # one model is in the view
    return only  # type: ignore[no-any-return]  # a JSON object


def test_an_absent_model_says_so_and_leaves_nothing_out() -> None:
    assert model(node_view(model_view("m01"))) == {
        "name": "m01",
        "aliases": [],
        "configured": True,
        "state": "absent",
        "instance": None,
        "gpus": [],
        "pinned": False,
        "pinned_by": None,
        "priority": "normal",
        "in_flight": 0,
        "queued": {"room": 0, "victims": 0, "weights": 0, "load": 0, "engine_slot": 0},
        "oldest_waiter_s": None,
        "last_used_s": None,
        "declared_bytes": GIB,
        "measured_bytes": None,
        "load_estimate_s": 2.0,
        "load_times_s": {},
        "max_wait_s": 300.0,
        "cached_bytes": None,
        "fetch": None,
        "verdict": "unknown",
        "load_ratio": 0.0,
        "load_fraction": 0.0,
        "partner": None,
        "inter_arrival_s": None,
        "frequency": 0.0,
        "caused_gpu_seconds": 0.0,
        "tier": None,
        "consecutive_failures": 0,
        "log": None,
        "cooling_down_s": None,
        "last_error": None,
        "why": [],
    }


def test_ages_are_seconds_before_the_moment_of_the_document() -> None:
    busy = model_view(
        "m01",
        instance=instance_view("m01", last_used=at(99.25), gpus=GpuSet(0b1010)),
        queued={WaitingFor.ENGINE_SLOT: 2},
        oldest_waiter=at(88),
        inter_arrival=Duration(30 * SECOND),
        story=((at(40), "loaded because somebody asked"),),
    )
    shown = model(node_view(busy), aliases={ModelName("m01"): ("tiny",)})
    assert shown["last_used_s"] == 0.75
    assert shown["oldest_waiter_s"] == 12
    assert shown["inter_arrival_s"] == 30
    assert shown["gpus"] == [1, 3]
    assert shown["aliases"] == ["tiny"]
    assert shown["why"] == [{"age_s": 60, "text": "loaded because somebody asked"}]


def test_a_model_that_cools_down_is_failed_and_says_for_how_long_and_why() -> None:
    failed = model_view("m01", cooling_until=at(110), consecutive_failures=2, last_error="exited with status 1")
    shown = model(node_view(failed))
    assert (shown["state"], shown["cooling_down_s"]) == ("failed", 10)
    assert (shown["consecutive_failures"], shown["last_error"]) == (2, "exited with status 1")


def test_the_log_of_a_model_is_named_also_when_nothing_of_it_runs() -> None:
    shown = document(node_view(model_view("m01")), log=lambda name: f"/var/log/{name}.log")
    assert shown["models"][0]["log"] == "/var/log/m01.log"


def test_an_instance_names_its_process_and_stage() -> None:
    loading = instance_view("m01", 7, state=State.LOADING, stage=Stage.WARMUP, since=at(98), gpus=GpuSet(0b11))
    processes = {InstanceId(7): ProcessInfo(pid=4711, port=20001, log="/var/log/swapd/m01.log")}
    (shown,) = document(node_view(model_view("m01", instance=loading)), processes=processes)["instances"]  # type: ignore[misc]
    assert shown == {
        "instance": 7,
        "model": "m01",
        "state": "loading",
        "stage": "warmup",
        "age_s": 2,
        "gpus": [0, 1],
        "bytes_per_gpu": GIB,
        "in_flight": 0,
        "last_used_s": 10,
        "outdated": False,
        "pid": 4711,
        "port": 20001,
        "log": "/var/log/swapd/m01.log",
    }


def test_devices_reservation_and_verdicts_are_told() -> None:
    reservation = ReservationView(ModelName("big"), GpuSet(0b11), at(70), (ModelName("m01"),))
    view = node_view(
        model_view("m01", verdict=Verdict.THRASHING, partner=ModelName("m02"), load_ratio=1.5, load_fraction=0.5),
        gpus=(gpu_view(0, reserved_bytes=Bytes(GIB), quarantined_bytes=Bytes(5), models=(ModelName("m01"),)),),
        reservation=reservation,
        story=((at(99), "reserved both devices for big"),),
    )
    shown = document(view)
    assert shown["reservation"] == {"model": "big", "gpus": [0, 1], "age_s": 30, "draining": ["m01"]}
    assert [(d["reserved_bytes"], d["quarantined_bytes"], d["models"]) for d in shown["devices"]] == [(GIB, 5, ["m01"])]
    assert shown["why"] == [{"age_s": 1, "text": "reserved both devices for big"}]
    assert model(view)["verdict"] == "thrashing"
    assert model(view)["partner"] == "m02"


def test_a_refused_config_says_that_it_is_not_in_force_and_why() -> None:
    config = ConfigInfo("/etc/swapd.yaml", ok=False, error="swapd.yaml:3: correct the key", age=Duration(5 * SECOND))
    shown = document(node_view(), config=config)
    assert shown["config"] == {
        "path": "/etc/swapd.yaml",
        "ok": False,
        "error": "swapd.yaml:3: correct the key",
        "age_s": 5,
        "restart_needed": [],
    }


def test_settings_that_wait_for_a_restart_are_named() -> None:
    config = ConfigInfo("/etc/swapd.yaml", ok=True, restart_needed=("http.listen",))
    assert document(node_view(), config=config)["config"]["restart_needed"] == ["http.listen"]


def test_readiness_is_the_reverse_of_its_reasons() -> None:
    assert document(node_view())["ready"] is True
    shown = document(node_view(draining=True), not_ready=("the node is draining",))
    assert (shown["ready"], shown["not_ready"], shown["draining"]) == (False, ["the node is draining"], True)
