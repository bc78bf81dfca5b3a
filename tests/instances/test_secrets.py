"""What an engine was given in confidence is in no sentence, even when the engine prints it."""

from pathlib import Path

import pytest

from swapd.core.events import LoadFailed
from swapd.core.ids import SECOND, Duration
from swapd.engines.base import LaunchSpec
from swapd.instances import sentences
from tests.fakes.engine_bench import bench


def shown(spec: LaunchSpec, *tail: str) -> str:
    return sentences.with_log("m01 ended", tail, sentences.secret_values([spec]))


def test_a_sentence_is_short_and_holds_no_secret() -> None:
    spec = LaunchSpec(("serve",), {"HF_TOKEN": "hf_verysecret", "HOME": "/root"}, None)
    said = sentences.exited("m01", 1, Duration(SECOND * 4 // 10), loading=True)
    tail = ["x" * 900, "token hf_verysecret refused in /root"]
    text = sentences.with_log(said, tail, sentences.secret_values([spec]))
    assert text.startswith("m01 exited with status 1 after 0.4 s; last lines of its log: ")
    assert text.endswith(" | token *** refused in /root")
    assert len(text) < 700


@pytest.mark.parametrize("name", ["HF_TOKEN", "API_KEY", "db_password", "AWS_CREDENTIALS", "REGISTRY_AUTH"])
def test_a_variable_with_a_telling_name_is_a_secret(name: str) -> None:
    assert shown(LaunchSpec(("serve",), {name: "swordfish"}, None), "got swordfish").endswith(": got ***")


@pytest.mark.parametrize(
    "argv",
    [
        ("--api-key", "swordfish"),
        ("--api-key", "another", "swordfish"),
        ("--api-key=swordfish",),
        ("--hf_token", "swordfish", "--port", "1"),
        ("--Admin-Secret=swordfish",),
        ("--password", "swordfish"),
        ("--auth", "swordfish"),
        ("-e", "HF_TOKEN=swordfish"),
    ],
)
def test_an_argument_with_a_telling_name_is_a_secret(argv: tuple[str, ...]) -> None:
    assert shown(LaunchSpec(("serve", *argv), {}, None), "argv: swordfish").endswith(": argv: ***")


@pytest.mark.parametrize(
    "argv",
    [
        ("--tokenizer", "swordfish"),
        ("--api-key", "longer-than-six", "--model", "swordfish"),
        ("--api-key=longer-than-six", "swordfish"),
        ("--enable-auth", "--model", "swordfish"),
    ],
)
def test_other_arguments_stay_readable(argv: tuple[str, ...]) -> None:
    assert shown(LaunchSpec(("serve", *argv), {}, None), "cannot open swordfish").endswith("open swordfish")


def test_whatever_the_model_s_own_environment_holds_is_a_secret_unless_it_is_short() -> None:
    own = {"PLAIN": "swordfish", "LONGER": "swordfish-2", "LEVEL": "debug"}
    text = shown(LaunchSpec(("serve",), {**own, "HOME": "/home/me"}, None, own), "swordfish-2 swordfish debug /home/me")
    assert text.endswith(": *** *** debug /home/me")


async def test_no_failure_tells_a_secret_of_the_configuration(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        script = ("sh", "-c", 'echo "$PLAIN $0 $@"; exit 1', "--api-key", "swordfish")
        hook = ("true", "--token=halibut")
        room.start(1, command=script, env={"PLAIN": "mackerel"}, stop_command=hook, args=("halibut",))
        failed = await room.fact(1, LoadFailed)
        assert failed.detail.endswith("last lines of its log: *** --api-key *** ***")
