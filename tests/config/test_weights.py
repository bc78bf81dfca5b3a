"""Weights that come from elsewhere: how a source is written, what is refused, and that no secret of it is shown."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swapd.config import Loaded, compile_catalog
from swapd.config import paths as places
from swapd.config.cache import Cache, WeightsSource
from swapd.config.check import inspect, model_table, node_table
from swapd.config.compile import with_sizes
from swapd.config.paths import cache_dir
from swapd.config.schema import Settings
from swapd.config.values import SOURCE_SCHEMES
from swapd.core.catalog import ModelSpec
from swapd.core.ids import SECOND, Bytes, Duration, ModelName
from swapd.weights.sources.registry import SOURCES

Understood = Callable[[str], Loaded]
Refused = Callable[[str], list[str]]

OK = 'command: [./serve, "{port}", "{weights}"], memory: 1GiB'
SUM = "ab" * 32


def model(understood: Understood, weights: str) -> ModelSpec:
    return compile_catalog(understood(f"models: {{a: {{{OK}, weights: {weights}}}}}").settings).models[ModelName("a")]


@pytest.mark.parametrize(
    "source",
    [
        "hf://Qwen/Qwen3-8B",
        "hf://Qwen/Qwen3-8B@refs/pr/1",
        "https://example.org/m01.gguf?download=true",
        "http://127.0.0.1:8000/m01.gguf",
        "s3://bucket/prefix",
        "s3://bucket",
        "file:///mnt/models/m01.gguf",
    ],
)
def test_a_model_says_where_its_weights_come_from(understood: Understood, source: str) -> None:
    loaded = understood(f'models: {{a: {{{OK}, weights: {{source: "{source}", include: ["*.gguf"]}}}}}}')
    written = loaded.settings.models["a"]
    assert written.source == WeightsSource(source=source, include=("*.gguf",))
    assert written.local_weights is None
    spec = compile_catalog(loaded.settings).models[ModelName("a")]
    assert (spec.fetched, spec.local_weights) == (True, False)


def test_weights_that_lie_here_are_never_fetched(understood: Understood) -> None:
    spec = model(understood, "models/m.gguf")
    assert (spec.fetched, spec.local_weights) == (False, True)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ("{source: models/m.gguf}", "`models.a.weights.source`: write where the weights come from, for example hf://"),
        ("{source: ftp://x/y}", "`models.a.weights.source`: write a source that begins with file://, https://"),
        ("{source: 'https://e.org/a b'}", "`models.a.weights.source`: leave out spaces"),
        ("{source: file://models/m.gguf}", "`models.a.weights.source`: write an absolute path after file://"),
        ("{source: hf://a/b/c}", "`models.a.weights.source`: write hf://organisation/name or hf://organisation/name@"),
        ("{source: https:///x}", "`models.a.weights.source`: write host or bucket after https://"),
        ("{source: 'https://e.org:x/y'}", "`models.a.weights.source`: write host or bucket after https://"),
        ("{source: 7}", "`models.a.weights.source`: write where the weights come from"),
        ("{}", "add `models.a.weights.source`, for example source: hf://Qwen/Qwen3-8B@main"),
        ("{sourc: x}", "remove or correct `models.a.weights.sourc`: there is no such key; did you mean `source`?"),
        ("{source: hf://a/b, sha256: abc}", "`models.a.weights.sha256`: write the 64 hexadecimal digits"),
        ("{source: hf://a/b, include: '*'}", "`models.a.weights.include`: write a list"),
        ("{source: hf://a/b, include: [/x]}", "`models.a.weights.include[1]`: write a pattern of names below"),
        ("hf://a/b", "`models.a.weights`: write {source: URL} for weights that come from elsewhere"),
    ],
)
def test_what_is_no_source_is_refused_with_a_sentence(refused: Refused, weights: str, sentence: str) -> None:
    found = refused(f"models:\n  a: {{{OK}, weights: {weights}}}")
    assert any(line.startswith(f"3: {sentence}") for line in found), found


@pytest.mark.parametrize(("scheme", "package", "extra"), [("hf", "huggingface_hub", "[hf]"), ("s3", "s3fs", "[s3]")])
def test_a_source_whose_package_is_missing_names_what_to_install(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, scheme: str, package: str, extra: str
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    sentence = f"`models.a.weights.source`: install swapd{extra}: {scheme}:// needs {package}, which is not there"
    assert refused(f"models:\n  a: {{{OK}, weights: {{source: {scheme}://a/b}}}}") == [f"3: {sentence}"]


@pytest.mark.parametrize("wrong", ["", ", sha256: 1", ", include: x"])
def test_no_secret_of_a_source_is_ever_shown(write: Callable[[str], Path], wrong: str) -> None:
    url = "https://user:geheim@example.org/m.gguf?signature=geheim"
    report = inspect(write(f'models: {{a: {{{OK}, weights: {{source: "{url}"{wrong}}}}}}}'))
    shown = [str(problem) for problem in (*report.problems, *report.warnings)]
    assert bool(wrong) == bool(report.problems)
    if report.settings is not None:
        shown += [json.dumps(report.settings.model_dump(mode="json")), str(model_table(report.settings))]
        assert "https://example.org/m.gguf" in shown[-1]
    assert "geheim" not in " ".join(shown)


@pytest.mark.parametrize("weights", ["https://u:geheim@e.org/x", "{source: 'ftp://u:geheim@e.org/x'}"])
def test_no_secret_of_what_is_refused_is_shown(refused: Refused, weights: str) -> None:
    assert "geheim" not in " ".join(refused(f"models:\n  a: {{{OK}, weights: {weights}}}"))


def test_another_source_needs_a_new_process_and_the_same_one_does_not(understood: Understood) -> None:
    revisions = [
        model(understood, weights).revision
        for weights in (
            "{source: hf://a/b}",
            "{source: hf://a/b@v2}",
            "{source: hf://a/b, include: [x]}",
            f"{{source: hf://a/b, sha256: {SUM}}}",
            "models/m.gguf",
        )
    ]
    assert len(set(revisions)) == len(revisions)
    assert model(understood, "{source: hf://a/b}").revision == revisions[0]


def test_once_the_size_is_known_heavier_weights_get_a_later_deadline(understood: Understood) -> None:
    settings = understood(
        f"models:\n  a: {{{OK}, weights: {{source: hf://a/b}}}}\n  b: {{{OK}, weights: models/m.gguf}}"
    ).settings
    catalog = compile_catalog(settings)
    sized = with_sizes(catalog, settings, {ModelName("a"): Bytes(70_000_000_000), ModelName("gone"): Bytes(1)})
    before, after = catalog.models[ModelName("a")], sized.models[ModelName("a")]
    assert (before.load_timeout, before.load_estimate) == (Duration(600 * SECOND), Duration(2 * SECOND))
    assert (after.load_timeout, after.load_estimate) == (Duration(1300 * SECOND), Duration(37 * SECOND))
    assert after.revision == before.revision
    assert sized.models[ModelName("b")] == catalog.models[ModelName("b")]


def test_the_cache_has_limits_that_are_written_as_they_are_read(understood: Understood) -> None:
    text = "cache: {path: weights, max_size: 1.5TiB, keep_free: 7%, max_parallel_fetches: 3, bandwidth: 500MB/s}"
    loaded = understood(text)
    assert loaded.settings.cache == Cache.model_construct(
        path=loaded.settings.directory / "weights",
        max_size=Bytes(3 << 39),
        keep_free=0.07,
        max_parallel_fetches=3,
        bandwidth=Bytes(500_000_000),
    )
    assert Settings.model_validate({"cache": loaded.settings.cache.model_dump(mode="json")}).cache == (
        loaded.settings.cache
    )
    rows = {row[0]: row[1] for row in node_table(loaded.settings).rows}
    assert (rows["cache.keep_free"], rows["cache.bandwidth"]) == ("7%", "500MB/s")


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ("keep_free: 0.1", "`cache.keep_free`: write a share of the whole such as 10%, below 100%, not 0.1"),
        ("keep_free: 100%", "`cache.keep_free`: write a share of the whole such as 10%"),
        ("bandwidth: 100MB", "`cache.bandwidth`: write a rate such as 100MB/s, not '100MB'"),
        ("bandwidth: 0B/s", "`cache.bandwidth`: write a rate above 0"),
        ("max_size: most", "`cache.max_size`: write a size such as 64MiB, 80GB or a plain number of bytes"),
        ("max_parallel_fetches: 0", "`cache.max_parallel_fetches`: write a number of at least 1"),
    ],
)
def test_a_limit_that_is_none_is_refused(refused: Refused, keys: str, sentence: str) -> None:
    assert [line.startswith(f"2: {sentence}") for line in refused(f"cache: {{{keys}}}")] == [True]


def test_weights_that_anybody_on_the_way_could_exchange_are_warned_about(understood: Understood) -> None:
    text = "models: {{a: {{{}, weights: {{source: {}{}}}}}}}"
    warned = [
        bool(understood(text.format(OK, source, more)).warnings)
        for source, more in (
            ("http://example.org/x", ""),
            ("http://example.org/x", f", sha256: {SUM}"),
            ("http://127.0.0.1/x", ""),
            ("https://example.org/x", ""),
        )
    ]
    assert warned == [True, False, False, False]


def test_the_cache_lies_where_it_is_told_or_where_caches_lie(
    understood: Understood, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, auto = understood("cache: {path: weights}").settings, understood("").settings
    monkeypatch.setattr(places, "_VAR_CACHE", tmp_path / "no-cache")
    environ = {"CACHE_DIRECTORY": "/var/cache/x:/y", "HOME": str(tmp_path)}
    assert cache_dir(told, environ) == directory / "weights"
    assert cache_dir(auto, environ) == Path("/var/cache/x")
    assert cache_dir(auto, {"HOME": str(tmp_path)}) == tmp_path / ".cache" / "swapd"
    monkeypatch.setattr(places, "_VAR_CACHE", tmp_path)
    assert cache_dir(auto, {"HOME": "/nowhere"}) == tmp_path
    assert not (directory / "weights").exists()


def test_the_cache_has_a_reader_for_every_kind_of_source() -> None:
    assert set(SOURCE_SCHEMES) == set(SOURCES)
