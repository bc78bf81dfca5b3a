"""Plays a trace on a node that need not exist, under several rules, and shows what would have come of each."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swapd.cli.help import Command

if TYPE_CHECKING:
    from swapd.cli.scene import Options, Scene
    from swapd.core.ids import Duration
    from swapd.sim.lives import Lives
    from swapd.sim.study import Rules, Study

FILE = click.Path(path_type=Path)


def _words(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Take values one by one or comma separated."""
    return tuple(word for value in values for word in (part.strip() for part in value.split(",")) if word)


def _list(*names: str, **options: Any) -> Callable[..., Any]:
    return click.option(*names, multiple=True, callback=_words, **options)


@click.command(cls=Command, short_help="Play a trace of requests on a simulated node.")
@click.option("--trace", type=FILE, metavar="FILE", required=True, help="Requests: CSV with t_s,model,service_s.")
@click.option(
    "--models",
    type=FILE,
    metavar="FILE",
    required=True,
    help="Models: CSV with model,gpus,load_s, or a config file (.yaml) with its models and rules.",
)
@click.option(
    "--topology",
    "--fixture",
    "fixture",
    type=FILE,
    metavar="FILE",
    help="The node has this topology matrix (nvidia-smi topo -m). [default: --gpus]",
)
@click.option("--gpus", type=click.IntRange(1, 64), help="The node has so many GPUs, all alike. [default: 8]")
@click.option("--gpu-memory", metavar="SIZE", help="Usable memory of each GPU. [default: 80GiB]")
@_list(
    "--policy",
    metavar="LIST",
    default=("gdsf,lru,clairvoyant",),
    help=(
        "Orders of victims to compare: gdsf, lru, cheapest-reload, and clairvoyant, which knows the trace. "
        "[default: gdsf,lru,clairvoyant]"
    ),
)
@_list("--protect", metavar="LIST", help="Protection times to compare: auto or durations. [default: as configured]")
@click.option("--protect-max-wait", metavar="DURATION", help="Patience with protected models, or never.")
@click.option("--drain-after", metavar="DURATION", help="When to reserve room and drain, or never.")
@_list("--pin", "pins", metavar="MODEL", help="Pin these models as well.")
@click.option("--loads", type=click.IntRange(1, 64), help="Loads at a time. [default: as configured]")
@click.option(
    "--max-wait", metavar="DURATION", help="Cold-start promise of every model. [default: never, or as configured]"
)
@click.option("--unload", metavar="DURATION", help="From the order to stop until the memory is free. [default: 3s]")
@click.option("--drop-unknown", is_flag=True, help="Leave out the requests for models that are not listed.")
@click.option("--round-gpus", is_flag=True, help="Round every model's GPUs up to a power of two.")
@_list("--seed", "--seeds", "seeds", metavar="LIST", help="Repeat with load times that vary by 15 %, once per seed.")
@click.option("--limit", metavar="DURATION", default="60s", show_default=True, help="The wait that is too long.")
@click.option(
    "--advise", is_flag=True, help="Find out which models to pin or to dedicate, so that waits stay below it."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything, models too, as one JSON object.")
@click.option("--plot", type=FILE, metavar="FILE", help="Draw who was resident when, and the waits: .svg or .png.")
def simulate(
    *,
    trace: Path,
    models: Path,
    policy: tuple[str, ...],
    protect: tuple[str, ...],
    seeds: tuple[str, ...],
    limit: str,
    advise: bool,
    as_json: bool,
    plot: Path | None,
    **options: Any,
) -> None:
    """Play the requests of a trace on a node under several rules, and show loads, evictions and waits of each.

    The daemon's own core decides, under virtual time. Record a trace with swapd trace. Shares over the limit count
    refused requests. Without --max-wait a model of a CSV list refuses nobody.

      Example:  swapd simulate --trace week.csv --models models.csv --policy gdsf,lru --pin m01
      Exit codes: 0 simulated · 1 a file cannot be used, or a model has no place · 2 wrong usage
    """
    from swapd.cli.scene import Options, scene
    from swapd.cli.scene import duration as parsed

    _drawable(plot)
    asked = Options(trace=trace, models=models, **options)
    longest = parsed(limit, "--limit", endless=False)
    setting = scene(asked)
    study = setting.study
    rules = list(_rules(policy, protect, study))
    document, drawn = _play(study, rules, _numbers(seeds), longest, draw=plot is not None)
    if advise:
        document["advice"] = _advice(study, rules[0], longest)
    if plot is not None:
        from swapd.sim.plot import draw

        try:
            draw(plot, drawn, len(study.topology.gpus))
        except OSError as error:
            raise click.ClickException(f"{plot} cannot be written: {error.strerror or error}") from None
    document = {**_head(asked, setting, limit_s=longest / 1e9), **document}
    if as_json:
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    from swapd.cli.simulated import print_document

    print_document(document)


def _rules(policies: tuple[str, ...], protects: tuple[str, ...], study: "Study") -> "Iterator[Rules]":
    """Yield the rows: each protection time under each policy."""
    from swapd.cli.scene import duration
    from swapd.sim.study import POLICIES, Rules

    unknown = [policy for policy in policies if policy not in POLICIES]
    if unknown or not policies:
        what = unknown[0] if unknown else "that"
        raise click.BadParameter(f"{what} is none of {', '.join(POLICIES)}", param_hint="--policy")
    times = [None if time == "auto" else duration(time, "--protect") for time in protects]
    for policy in dict.fromkeys(policies):
        for time in dict.fromkeys(times) or (study.catalog.settings.protect,):
            yield Rules(policy, time)


def _numbers(seeds: tuple[str, ...]) -> list[int | None]:
    try:
        return list(dict.fromkeys(int(seed) for seed in seeds)) or [None]
    except ValueError:
        raise click.BadParameter("seeds are whole numbers, such as 1,2,3", param_hint="--seeds") from None


def _play(
    study: "Study", rules: "list[Rules]", seeds: list[int | None], limit: "Duration", *, draw: bool
) -> "tuple[dict[str, Any], list[tuple[str, Lives]]]":
    """Play every row; return the figures, and what is drawn: the first seed of each row."""
    from swapd.sim.figures import row
    from swapd.sim.lives import Lives
    from swapd.sim.study import play

    rows, drawn = [], []
    for rule in rules:
        outcomes = {}
        for seed in seeds:
            lives = Lives()
            outcomes[seed] = play(study, rule, seed=seed, observers=[lives] if draw else [])
            if seed == seeds[0]:
                drawn.append((rule.name, lives))
        rows.append(row(rule, outcomes, study, limit))
    return {"seeds": [seed for seed in seeds if seed is not None], "policies": rows}, drawn


def _head(options: "Options", setting: "Scene", limit_s: float) -> dict[str, Any]:
    study = setting.study
    return {
        "trace": str(options.trace),
        "models": str(options.models),
        "topology": None if options.fixture is None else str(options.fixture),
        "gpus": len(study.topology.gpus),
        "requests": len(study.arrivals),
        "dropped_requests": setting.dropped,
        "model_count": len(study.catalog.models),
        "duration_s": (study.arrivals[-1].at - study.arrivals[0].at) / 1e9,
        "pinned": sorted(name for name, spec in study.catalog.models.items() if spec.pinned),
        "limit_s": limit_s,
    }


def _advice(study: "Study", rules: "Rules", limit: "Duration") -> dict[str, Any]:
    from dataclasses import asdict

    from swapd.sim.advise import advise
    from swapd.sim.sentences import sentences

    def told(line: str) -> None:
        click.echo(line, err=True)

    advice = advise(study, rules, limit, told)
    return {
        "goal_share": advice.goal,
        "met": advice.met,
        "before": asdict(advice.before),
        "after": asdict(advice.after),
        "steps": [asdict(step) for step in advice.steps],
        "swapped": list(advice.swapped),
        "slower_than_limit": list(advice.slow),
        "sentences": list(sentences(advice)),
    }


def _drawable(path: Path | None) -> None:
    """Refuse before anything is played what could not be drawn afterwards."""
    if path is None:
        return
    if path.suffix not in (".svg", ".png"):
        raise click.BadParameter("name a file that ends in .svg or .png", param_hint="--plot")
    if not path.parent.is_dir():
        raise click.BadParameter(f"there is no directory {path.parent}", param_hint="--plot")
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise click.ClickException("--plot needs matplotlib: pip install 'swapd[plot]'")
