"""Lays out what simulated runs have come to: one line per row of rules, the models of the first row, the advice."""

from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from swapd.cli.client import printable
from swapd.cli.table import age, print_sentence, table, wide
from swapd.core.sentences import number

Json = dict[str, Any]

_EXTRA: Final = {"unneeded": "unneeded_gpus", "refused": "refused"}
"""Columns that are shown where there is something in them."""
_WHOLE_S: Final = 9.5
"""Load times from here on are shown in whole seconds."""
_MODELS: Final = 12
"""So many models are shown; the JSON form has all."""


def print_document(document: Json) -> None:
    """Print the document of ``swapd simulate``."""
    console = wide(Console(markup=False, highlight=False, emoji=False))
    console.print(Text(_headline(document)))
    console.print()
    console.print(_rows(document))
    console.print()
    console.print(_models(document))
    left_out = document["model_count"] - _MODELS
    if left_out > 0:
        console.print(Text(f"and {left_out} more that cost less; --json shows all", "dim"))
    if "advice" in document:
        console.print(Text("\nAdvice", "bold"))
        for sentence in document["advice"]["sentences"]:
            print_sentence(console, f"- {sentence}")


def _headline(document: Json) -> str:
    requests, models = number(document["requests"], "request"), number(document["model_count"], "model")
    seeds = f", {number(len(document['seeds']), 'seed')}" if document["seeds"] else ""
    dropped = f"; {document['dropped_requests']} left out" if document["dropped_requests"] else ""
    where = f"on {number(document['gpus'], 'GPU')}"
    return f"{requests} in {age(document['duration_s'])} for {models} {where}{seeds}{dropped}"


def _rows(document: Json) -> Table:
    limit = f"> {document['limit_s']:g} s"
    several = len({row["protect_s"] for row in document["policies"]}) > 1
    names = ("mean", "p50", "p95", "p99", "max", "delayed", limit, "loads/h", "evicted/h", "loading", "thrash", "empty")
    extra = [name for name in ("unneeded", "refused") if any(row[_EXTRA[name]] for row in document["policies"])]
    rows = table("policy", *names, *extra, right=(*names, *extra))
    for row in document["policies"]:
        protect = "auto" if row["protect_s"] is None else f"{row['protect_s']:g} s"
        cells = (
            f"{row['policy']}, protect {protect}" if several else row["policy"],
            *(f"{row[f'wait_{name}_s']:.1f}" for name in ("mean", "p50", "p95", "p99", "max")),
            f"{row['delayed_share']:.1%}",
            f"{row['over_limit_share']:.1%}",
            f"{row['loads_per_h']:.1f}",
            f"{row['evictions_per_h']:.1f}",
            f"{row['loading_share']:.1%}",
            f"{row['thrash_loads']:.0f}",
            f"{row['empty_gpus']:.2f}",
        )
        rows.add_row(*cells, *(f"{row[_EXTRA[name]]:.3g}" for name in extra))
    return rows


def _models(document: Json) -> Table:
    first = document["policies"][0]
    models = sorted(first["models"], key=lambda model: -model["caused_gpu_s"])[:_MODELS]
    right = ("GPUs", "load", "requests/h", "mean", "p99", "max", "loads/h", "caused GPU-s")
    rows = table(f"model ({first['policy']})", *right, "verdict", "tier", right=right)
    for model in models:
        rows.add_row(
            Text(printable(model["model"]) + (" (pinned)" if model["pinned"] else "")),
            str(model["gpus"]),
            f"{model['load_s']:.0f}" if model["load_s"] >= _WHOLE_S else f"{model['load_s']:.2g}",
            f"{model['requests_per_h']:.2f}",
            *(f"{model[f'wait_{name}_s']:.1f}" for name in ("mean", "p99", "max")),
            f"{model['loads_per_h']:.2f}",
            f"{model['caused_gpu_s']:.0f}",
            model["verdict"],
            model["tier"],
        )
    return rows
