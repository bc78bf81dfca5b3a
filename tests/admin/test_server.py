"""The admin socket as a client sees it."""

import asyncio
import errno
import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from swapd.admin.control import Result
from swapd.admin.events import EventHub
from swapd.admin.server import AdminServer, AdminSocketError
from swapd.admin.status import ConfigInfo
from swapd.core.commands import Transitioned
from swapd.core.ids import SECOND, Duration, GpuSet, InstanceId, ModelName
from swapd.core.reasons import Rejection, State
from tests.fakes.control import FakeControl, extras
from tests.fakes.node_views import instance_view, model_view, node_view

DEADLINE_S = 60.0
M01 = ModelName("m01")


def transitioned(number: int, text: str = "it answered") -> Transitioned:
    return Transitioned(InstanceId(number), M01, GpuSet(1), State.LOADING, State.READY, text)


class Admin:
    """A running admin server and a client of it."""

    def __init__(self, path: Path, control: FakeControl) -> None:
        self.path = path
        self.control = control
        self.hub = EventHub()
        self.server = AdminServer(path, control, self.hub)
        self.http = aiohttp.ClientSession(
            "http://admin", connector=aiohttp.UnixConnector(str(path)), timeout=aiohttp.ClientTimeout(DEADLINE_S)
        )

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(path) as response:
            return response.status, await response.json()

    async def post(self, path: str, body: object = None) -> tuple[int, Any]:
        async with self.http.post(path, json=body) as response:
            return response.status, await response.json()


@asynccontextmanager
async def running(path: Path, control: FakeControl | None = None) -> AsyncIterator[Admin]:
    admin = Admin(path, control or FakeControl())
    try:
        await admin.server.start()
        yield admin
    finally:
        await admin.http.close()
        await admin.server.aclose()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "admin.sock"


@pytest.fixture
async def admin(path: Path) -> AsyncIterator[Admin]:
    async with running(path) as made:
        yield made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def dead_socket(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


def exists(path: Path) -> bool:
    return path.exists()


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


# ── the socket ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_only_owner_and_group_reach_the_socket(admin: Admin) -> None:
    assert mode(admin.path) == 0o660
    assert mode(admin.path.parent) == 0o750
    assert names(admin.path.parent) == ["admin.sock"]


async def test_the_socket_goes_with_the_daemon(path: Path) -> None:
    async with running(path):
        pass
    assert not exists(path)


async def test_the_socket_of_a_dead_daemon_is_replaced(path: Path) -> None:
    dead_socket(path)
    async with running(path) as admin:
        assert (await admin.get("/v1/status"))[0] == 200


async def test_the_socket_of_a_living_daemon_is_left_to_it(admin: Admin) -> None:
    second = AdminServer(admin.path, FakeControl(), EventHub())
    with pytest.raises(AdminSocketError, match=r"another swapd answers on .*admin\.sock; stop it"):
        await second.start()
    await second.aclose()
    assert (await admin.get("/v1/status"))[0] == 200


async def test_a_file_in_the_place_of_the_socket_is_never_removed(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("somebody's notes")  # noqa: ASYNC240 - a test's own file
    server = AdminServer(path, FakeControl(), EventHub())
    with pytest.raises(AdminSocketError, match="is no socket; move it away"):
        await server.start()
    await server.aclose()
    assert exists(path)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [("x" * 200 + "/admin.sock", "is too long; choose a shorter one"), ("file/admin.sock", "cannot be made: ")],
)
async def test_an_impossible_place_is_refused_in_one_sentence(tmp_path: Path, place: str, sentence: str) -> None:
    (tmp_path / "file").write_text("")
    server = AdminServer(tmp_path / place, FakeControl(), EventHub())
    with pytest.raises(AdminSocketError, match=sentence):
        await server.start()
    await server.aclose()


async def test_a_socket_that_cannot_be_put_in_place_leaves_nothing_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "rename", refuse)
    server = AdminServer(path, FakeControl(), EventHub())
    with pytest.raises(AdminSocketError, match="cannot be made: Operation not permitted; choose another path"):
        await server.start()
    await server.aclose()
    assert names(path.parent) == []


async def test_a_living_daemon_that_is_too_busy_to_accept_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))
        server = AdminServer(path, FakeControl(), EventHub())
        with pytest.raises(AdminSocketError, match="another swapd answers"):
            await server.start()
        await server.aclose()


# ── orders ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("order", "body", "asked"),
    [
        ("/v1/models/m01/load", None, ("load", "m01")),
        ("/v1/models/tiny/load", None, ("load", "m01")),
        ("/v1/models/org/model-7b/load", None, ("load", "org/model-7b")),
        ("/v1/models/m01/unload", {}, ("unload", "m01", None)),
        ("/v1/models/tiny/unload", {"timeout": 1.5}, ("unload", "m01", 1.5 * SECOND)),
        ("/v1/models/tiny/pin", None, ("pin", "m01", True)),
        ("/v1/models/tiny/unpin", None, ("pin", "m01", False)),
        ("/v1/drain", {"timeout": 150}, ("drain", 150 * SECOND)),
        ("/v1/drain", {"timeout": None}, ("drain", None)),
        ("/v1/undrain", None, ("undrain",)),
        ("/v1/reload", None, ("reload",)),
        ("/v1/gpus/release", None, ("release_gpus",)),
        ("/v1/gpus/acquire", None, ("acquire_gpus",)),
    ],
)
async def test_an_order_reaches_the_daemon_under_the_models_own_name(
    admin: Admin, order: str, body: object, asked: tuple[object, ...]
) -> None:
    assert await admin.post(order, body) == (200, {"ok": True, "detail": "done", "reason": None})
    assert admin.control.asked == [asked]


async def test_an_order_without_a_body_has_no_timeout(admin: Admin) -> None:
    async with admin.http.post("/v1/drain") as response:
        assert response.status == 200
    assert admin.control.asked == [("drain", None)]


async def test_the_status_names_paths_that_are_no_utf_8(tmp_path: Path) -> None:
    path = "/etc/\udcff.yaml"
    config = ConfigInfo(path=path, ok=True, age=Duration(0))
    control = FakeControl(extras=extras(config=config, log=lambda _: path))
    async with running(tmp_path / "admin.sock", control) as admin:
        status, document = await admin.get("/v1/status")
    assert (status, document["config"]["path"], document["models"][0]["log"]) == (200, path, path)


@pytest.mark.parametrize(
    "body", [[], 5, "x", {"timeout": "5s"}, {"timeout": -1}, {"timeout": True}, {"timeout": 1e300}]
)
async def test_a_wrong_timeout_is_refused_and_nothing_is_ordered(admin: Admin, body: object) -> None:
    status, answer = await admin.post("/v1/drain", body)
    assert (status, answer["ok"], answer["reason"]) == (400, False, "invalid_request")
    assert admin.control.asked == []


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"timeout=5", {}),
        (b"[" * 50_000, {}),
        (b'{"timeout": "\xff"}', {}),
        (b'{"timeout": 5x}', {"Content-Type": "application/json; charset=nonesuch"}),
        (b"no gzip", {"Content-Encoding": "gzip"}),
    ],
    ids=["no JSON", "deep", "not UTF-8", "unknown charset", "not compressed"],
)
async def test_a_body_that_is_no_json_is_refused_and_nothing_is_ordered(
    admin: Admin, body: bytes, headers: dict[str, str]
) -> None:
    async with admin.http.post("/v1/drain", data=body, headers=headers) as response:
        assert (response.status, (await response.json())["reason"]) == (400, "invalid_request")
    assert admin.control.asked == []


async def test_an_unknown_model_is_named_in_one_sentence(admin: Admin) -> None:
    status, answer = await admin.post("/v1/models/nope/load")
    assert status == 404
    assert answer == {
        "ok": False,
        "detail": "no model and no alias is named 'nope'; see swapd status",
        "reason": "unknown_model",
    }


@pytest.mark.parametrize(
    ("reason", "status"), [(Rejection.LOAD_FAILED, 409), (Rejection.UNKNOWN_MODEL, 404), (None, 409)]
)
async def test_a_refusal_keeps_the_daemons_sentence(admin: Admin, reason: Rejection | None, status: int) -> None:
    admin.control.result = Result(ok=False, detail="it exited with status 1", reason=reason)
    answer = {"ok": False, "detail": "it exited with status 1", "reason": reason and reason.value}
    assert await admin.post("/v1/models/m01/load") == (status, answer)


async def test_every_error_has_the_same_form(admin: Admin) -> None:
    assert (await admin.get("/v1/nothing"))[0] == 404
    status, answer = await admin.get("/v1/drain")
    assert (status, answer["ok"], answer["reason"]) == (405, False, None)
    assert answer["detail"] == "GET /v1/drain: Method Not Allowed"
    status, answer = await admin.post("/v1/drain", {"timeout": "x" * 100_000})
    assert (status, answer["ok"]) == (413, False)


async def test_status_answers_while_an_order_is_being_carried_out(admin: Admin) -> None:
    admin.control.gate = asyncio.Event()
    order = asyncio.ensure_future(admin.post("/v1/models/m01/load"))
    await admin.control.entered.wait()
    status, shown = await admin.get("/v1/status")
    assert (status, shown["models"][0]["name"]) == (200, "m01")
    assert not order.done()
    admin.control.gate.set()
    assert (await order)[0] == 200


async def test_the_topology_answers_while_the_gpus_are_being_released(admin: Admin) -> None:
    admin.control.gate = asyncio.Event()
    order = asyncio.ensure_future(admin.post("/v1/gpus/release"))
    await admin.control.entered.wait()
    status, shown = await admin.get("/v1/topology")
    assert (status, list(shown)) == (200, ["topology", "free", "models", "state"])
    assert isinstance(shown["topology"]["gpus"], list)
    admin.control.gate.set()
    assert (await order)[0] == 200


async def test_an_operator_who_leaves_is_not_waited_for(path: Path) -> None:
    control = FakeControl(gate=asyncio.Event())
    async with running(path, control) as admin:
        order = asyncio.ensure_future(admin.post("/v1/drain"))
        await control.entered.wait()
        order.cancel()
        await asyncio.gather(order, return_exceptions=True)
    assert not exists(path)


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_status_and_events_agree_on_a_model_that_has_just_become_ready(admin: Admin) -> None:
    async with admin.http.get("/v1/events") as stream:
        assert stream.headers["Content-Type"] == "application/x-ndjson"
        admin.control.view = node_view(model_view("m01", instance=instance_view("m01", state=State.READY)))
        admin.hub.publish(transitioned(1))
        event = json.loads(await stream.content.readline())
        (model,) = (await admin.get("/v1/status"))[1]["models"]
        assert (event["model"], event["after"]) == (model["name"], model["state"]) == ("m01", "ready")


async def test_stalled_readers_hold_up_neither_the_daemon_nor_others(admin: Admin) -> None:
    """Five readers never read; the flood is larger than every buffer on the way."""
    stalled = []
    for _ in range(5):
        reader, writer = await asyncio.open_unix_connection(str(admin.path), limit=1024)
        writer.write(b"GET /v1/events HTTP/1.1\r\nHost: admin\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        stalled.append((reader, writer))
    async with admin.http.get("/v1/events") as stream:
        text = "x" * 1000
        for number in range(5000):
            admin.hub.publish(transitioned(number, text))
            event = json.loads(await stream.content.readline())
            assert event["instance"] == number
        assert (await admin.get("/v1/status"))[0] == 200
    rest, told = b"", False
    async with asyncio.timeout(DEADLINE_S):
        while b'"instance":4999,' not in rest:
            rest = rest[-100_000:] + await stalled[0][0].read(65536)
            if b'"event":"dropped"' in rest:
                told = True
    assert told
    for _, writer in stalled:
        writer.close()
        await writer.wait_closed()
    await until(lambda: len(admin.hub) == 0)


async def test_a_reader_that_leaves_is_forgotten_without_waiting_for_the_next_event(admin: Admin) -> None:
    stream = await admin.http.get("/v1/events")
    await until(lambda: len(admin.hub) == 1)
    stream.close()
    await until(lambda: len(admin.hub) == 0)


async def test_the_stream_ends_cleanly_with_the_daemon(admin: Admin) -> None:
    async with admin.http.get("/v1/events") as stream:
        admin.hub.publish(transitioned(1))
        admin.hub.close()
        assert len((await stream.read()).splitlines()) == 1


async def test_too_many_readers_are_refused(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swapd.admin.events.MAX_READERS", 0)
    status, answer = await admin.get("/v1/events")
    assert status == 429
    assert answer["detail"] == "0 event readers are connected; end one of them first"
