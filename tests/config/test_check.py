"""What `swapd check` shows."""

from collections.abc import Callable
from pathlib import Path

from swapd.config.check import inspect, model_table, node_table

MODEL = 'command: [./serve, "{port}"], memory: 1GiB'


def test_a_refused_file_shows_its_problems_and_no_settings(write: Callable[[str], Path]) -> None:
    report = inspect(write("models: {a: {}}"))
    assert (report.settings, report.warnings) == (None, ())
    assert [problem.line for problem in report.problems] == [2]


def test_a_usable_file_shows_what_was_understood_of_each_model(write: Callable[[str], Path]) -> None:
    report = inspect(
        write(f"""
        models:
          a: {{{MODEL}, weights: models/m.gguf, aliases: [x, y], pin: true, concurrency: 8,
              max_wait: 90s, priority: high}}
          b: {{{MODEL}, exclusive: false, gpus: 2}}
          c: {{{MODEL}, host_memory: 64GiB, nvlink: required, gpu_name: "*H100*", min_compute_capability: 9.0}}
        """)
    )
    assert report.problems == ()
    assert report.settings is not None
    models = model_table(report.settings)
    assert models.rows[2][3] == "1 × 1 GiB, 64 GiB of the host, NVLink required, *H100*, CC ≥ 9.0"
    assert [dict(zip(models.columns, row, strict=True)) for row in models.rows[:2]] == [
        {
            "model": "a",
            "aliases": "x, y",
            "engine": "command",
            "GPUs × memory": "1 × 1 GiB",
            "concurrency": "8",
            "max wait": "1m30s",
            "pin": "yes",
            "priority": "high",
            "weights": "3.81 MiB",
            "first load": "about 2s",
        },
        {
            "model": "b",
            "aliases": "",
            "engine": "command",
            "GPUs × memory": "2 × 1 GiB, shared",
            "concurrency": "16",
            "max wait": "5m",
            "pin": "",
            "priority": "normal",
            "weights": "",
            "first load": "about 2s",
        },
    ]


def test_the_nodes_settings_are_shown_as_a_file_would_write_them(write: Callable[[str], Path]) -> None:
    report = inspect(write("scheduling: {protect_max_wait: never, min_residency: 1x}"))
    assert report.settings is not None
    rows = {row[0]: row[1] for row in node_table(report.settings).rows}
    assert rows["scheduling.protect_max_wait"] == "never"
    assert rows["scheduling.min_residency"] == "1x"
    assert rows["scheduling.drain_timeout"] == "null"
    assert (rows["http.listen"], rows["http.sse_keepalive"]) == ("127.0.0.1:8090", "off")
    assert (rows["devices.virtual.count"], rows["devices.virtual.memory"]) == ("4", "8GiB")
    assert len([warning for warning in report.warnings if "never" in warning.message]) == 1


def test_a_file_for_another_machine_is_checked_without_the_programs_and_weights_of_this_one(
    write: Callable[[str], Path],
) -> None:
    path = write('models: {a: {command: [./nowhere, "{port}"], weights: nowhere.gguf, memory: 1GiB, gpus: 5}}')
    assert [problem.message[:19] for problem in inspect(path).problems] == [
        "`models.a.command`:",
        "`models.a.gpus`: wr",
        "`models.a.weights`:",
    ]
    assert [problem.message[:16] for problem in inspect(path, elsewhere=True).problems] == ["`models.a.gpus`:"]
