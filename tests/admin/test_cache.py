"""The weight cache as operators and placers see it on the admin socket."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from swapd.admin.cache import CacheInfo, CopyInfo
from swapd.admin.control import Result
from swapd.core.ids import SECOND, Bytes, Duration, Instant, ModelName
from swapd.core.reasons import Rejection
from swapd.core.view import FetchView
from tests.admin.test_server import Admin, running
from tests.fakes.node_views import instance_view, model_view, node_view

M01, ORG = ModelName("m01"), ModelName("org/model-7b")
COPY = CopyInfo("/c/m01", "hf://o/m01", "abc", 2, Bytes(40), (M01,), damaged=False)
FETCH = FetchView(
    since=Instant(90 * SECOND),
    running=True,
    done=Bytes(30),
    total=Bytes(120),
    rate=10.4,
    remaining=Duration(9 * SECOND),
    waits="",
)


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with running(tmp_path / "run" / "admin.sock") as made:
        yield made


async def delete(admin: Admin, path: str) -> tuple[int, Any]:
    async with admin.http.delete(path) as response:
        return response.status, await response.json()


async def test_it_shows_limits_copies_and_what_is_on_its_way(admin: Admin) -> None:
    admin.control.view = node_view(
        model_view("m01", instance=instance_view("m01")), model_view("m02", fetch=FETCH), at=Instant(100 * SECOND)
    )
    admin.control.kept_weights = CacheInfo("/c", Bytes(70), Bytes(200), Bytes(1), (COPY,))
    assert await admin.get("/v1/cache") == (
        200,
        {
            "path": "/c",
            "used_bytes": 70,
            "limit_bytes": 200,
            "foreign_bytes": 1,
            "copies": [
                {
                    "path": "/c/m01",
                    "source": "hf://o/m01",
                    "revision": "abc",
                    "files": 2,
                    "bytes": 40,
                    "models": ["m01"],
                    "in_use": True,
                    "pinned": False,
                    "damaged": False,
                }
            ],
            "fetches": [
                {
                    "model": "m02",
                    "running": True,
                    "age_s": 10.0,
                    "done_bytes": 30,
                    "total_bytes": 120,
                    "bytes_per_s": 10,
                    "remaining_s": 9.0,
                    "waits": None,
                }
            ],
        },
    )


async def test_where_no_model_needs_a_cache_it_is_empty(admin: Admin) -> None:
    status, document = await admin.get("/v1/cache")
    assert (status, document["path"], document["copies"], document["fetches"]) == (200, None, [], [])


async def test_the_status_tells_which_models_are_cached_and_how_far_a_fetch_is(admin: Admin) -> None:
    admin.control.view = node_view(
        model_view("m01", cached_bytes=Bytes(40)), model_view("m02", fetch=FETCH), at=Instant(100 * SECOND)
    )
    _, document = await admin.get("/v1/status")
    told = {model["name"]: (model["state"], model["cached_bytes"], model["fetch"]) for model in document["models"]}
    assert told["m01"] == ("cached", 40, None)
    assert told["m02"][:2] == ("absent", None)
    assert told["m02"][2]["remaining_s"] == 9.0


async def test_a_prefetch_is_answered_when_the_weights_are_there(admin: Admin) -> None:
    status, body = await admin.post("/v1/models/org/model-7b/prefetch")
    assert (status, body) == (200, {"ok": True, "detail": "done", "reason": None})
    assert admin.control.asked == [("prefetch", ORG, True)]


async def test_whoever_does_not_wait_is_told_that_they_are_to_come(admin: Admin) -> None:
    status, body = await admin.post("/v1/models/tiny/prefetch?wait=false")
    assert (status, body["ok"], body["detail"]) == (202, True, "the weights of m01 are being fetched")
    admin.control.slow = False
    assert (await admin.post("/v1/models/tiny/prefetch?wait=false"))[0] == 200
    assert (await admin.post("/v1/models/tiny/prefetch?wait=maybe"))[0] == 400


async def test_a_placer_can_say_have_these_ready(admin: Admin) -> None:
    admin.control.results = {ORG: Result(ok=False, detail="it was refused", reason=Rejection.LOAD_FAILED)}
    status, body = await admin.post("/v1/prefetch", {"models": ["m01", "org/model-7b", "tiny"]})
    assert (status, body["ok"], body["detail"], body["reason"]) == (409, False, "it was refused", "load_failed")
    assert {name: result["ok"] for name, result in body["models"].items()} == {"m01": True, "org/model-7b": False}
    assert admin.control.asked == [("prefetch", M01, True), ("prefetch", ORG, True)]


async def test_several_that_nobody_waits_for_are_to_come(admin: Admin) -> None:
    status, body = await admin.post("/v1/prefetch?wait=false", {"models": ["m01"]})
    assert (status, body["models"]["m01"]["detail"]) == (202, "the weights of m01 are being fetched")


@pytest.mark.parametrize("body", [None, {}, {"models": []}, {"models": "m01"}, {"models": [1]}, ["m01"]])
async def test_a_list_of_models_that_is_none_orders_nothing(admin: Admin, body: object) -> None:
    status, answer = await admin.post("/v1/prefetch", body)
    assert (status, answer["reason"]) == (400, "invalid_request")
    assert admin.control.asked == []


async def test_one_unknown_name_orders_nothing(admin: Admin) -> None:
    status, answer = await admin.post("/v1/prefetch", {"models": ["m01", "m99"]})
    assert (status, answer["reason"]) == (404, "unknown_model")
    assert admin.control.asked == []


async def test_a_copy_can_be_verified_and_removed(admin: Admin) -> None:
    assert (await admin.post("/v1/cache/org/model-7b/verify"))[0] == 200
    assert (await delete(admin, "/v1/cache/tiny"))[0] == 200
    assert admin.control.asked == [("verify", ORG), ("remove", M01)]
    assert (await delete(admin, "/v1/cache/m99"))[0] == 404


async def test_every_path_is_also_there_below_swapd(admin: Admin) -> None:
    paths = {route.resource.canonical for route in admin.server._runner.app.router.routes() if route.resource}
    own = {path for path in paths if not path.startswith("/swapd/")}
    assert {f"/swapd{path}" for path in own} == paths - own
    assert (await admin.post("/swapd/v1/models/org/model-7b/prefetch"))[0] == 200
    assert admin.control.asked == [("prefetch", ORG, True)]
