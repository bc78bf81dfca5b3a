"""A daemon records what it was asked; a later one adds to it, and the simulator plays it."""

import json
from pathlib import Path

from click.testing import CliRunner

from swapd.cli.root import swapd
from tests.fakes.daemon import chat, running
from tests.fakes.scripted import scripted_model

SECRET = "nobody may read this"


async def test_requests_are_on_record_after_a_restart_and_can_be_played(tmp_path: Path) -> None:
    models = {"a": scripted_model("--load-s", "0.3"), "b": scripted_model("--load-s", "60", max_wait="50ms")}
    for round_number in (1, 2):
        async with running(tmp_path, models=models) as daemon, daemon.client() as http:
            headers = {"x-fake": "delay=0.4"}
            body = {**chat("a"), "messages": [{"role": "user", "content": SECRET}]}
            async with http.post("/v1/chat/completions", json=body, headers=headers) as answer:
                assert answer.status == 200
            async with http.post("/v1/chat/completions", json=chat("b")) as answer:
                assert answer.status == 503
            trace = (await daemon.cli("trace")).splitlines()
            listed = await daemon.cli("trace", "--models")
        assert trace[0] == "t_s,model,service_s"
        assert [line.split(",")[1] for line in trace[1:]] == ["a", "b"] * round_number
        assert all(0.4 <= float(line.split(",")[2]) < 5 for line in trace[1:])
    assert [line.split(",")[:2] for line in listed.splitlines()] == [["model", "gpus"], ["a", "1"], ["b", "1"]]
    assert 0.3 <= float(listed.splitlines()[1].split(",")[2]) < 10
    kept = b"".join(path.read_bytes() for path in (tmp_path / "arrivals").iterdir())
    assert SECRET.encode() not in kept

    (tmp_path / "trace.csv").write_text("\n".join(trace))
    (tmp_path / "models.csv").write_text(listed)
    files = ("--trace", str(tmp_path / "trace.csv"), "--models", str(tmp_path / "models.csv"))
    done = CliRunner().invoke(swapd, ["simulate", *files, "--policy", "gdsf", "--json"])
    [row] = json.loads(done.stdout)["policies"]
    assert (row["served"], row["loads"]) == (4, 2)
