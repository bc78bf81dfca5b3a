"""Draws runs: who was on which GPU when, with loads and waits, and how the waits are distributed under each policy.

Needs matplotlib, which only ``swapd[plot]`` installs; whoever calls has made sure that it is there. One pair of panels
for each row of rules, one below the other, and the distributions at the end. The models that had most of the GPUs' time
have colours of their own, the same in every panel, and are named below; all others share one.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from swapd.core.ids import SECOND, Instant, ModelName, gpu_indices
from swapd.sim.lives import Life, Lives

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HOUR: Final = 3600 * SECOND
_WIDTH_IN: Final = 14.0
_GPU_IN: Final = 0.28
_PANEL_IN: Final = 2.2
#: a drawing with more bars or dots than this is kept as an image inside the SVG, which would be too large otherwise
_MOST_SHAPES: Final = 4000
_LOADING: Final = "black"
_LEAVING: Final = "#e8e8e8"
_OTHERS: Final = "#9a9a9a"
#: places of the palette that could be taken for an engine that leaves, or for the others
_GREYS: Final = (14, 15)
_LEAST_S: Final = 0.1
#: characters of a line of names, and what a patch of colour takes of it
_LINE: Final = 180
_PATCH: Final = 8


def draw(path: Path, runs: Sequence[tuple[str, Lives]], gpus: int) -> None:
    """Write the picture; the format is told by the name's ending. Raises ``OSError``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours = _colours([lives for _, lives in runs])
    heights = [height for _ in runs for height in (0.8 + _GPU_IN * gpus, _PANEL_IN)] + [2 * _PANEL_IN]
    figure = Figure(figsize=(_WIDTH_IN, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for place, (name, lives) in enumerate(runs):
        timeline, waits = panels[2 * place], panels[2 * place + 1]
        _draw_residents(timeline, name, lives, gpus, colours)
        _draw_waits(waits, lives)
        waits.sharex(timeline)
    _draw_distributions(panels[-1], runs)
    _name_colours(figure, colours)
    figure.savefig(path, dpi=110)


def distribution(lives: Lives) -> tuple[list[float], list[float]]:
    """Return waits in seconds, ascending, and the share of requests that waited no longer than each."""
    waits = sorted(waited.wait_s for waited in lives.waits)
    return waits, [place / len(waits) for place in range(1, len(waits) + 1)]


def phases(life: Life, end: Instant) -> Iterator[tuple[str, float, float]]:
    """Yield each part of a life as word, begin and length in hours: loading, ready, leaving."""
    marks = (("loading", life.loading), ("ready", life.ready), ("leaving", life.leaving), ("", life.gone or end))
    known = [(word, moment) for word, moment in marks if moment is not None]
    for (word, begin), (_, stop) in itertools.pairwise(known):
        yield word, begin / _HOUR, (stop - begin) / _HOUR


def _draw_residents(axes: "Axes", name: str, lives: Lives, gpus: int, colours: Mapping[ModelName, str]) -> None:
    bars: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for life in lives.lives():
        for word, begin, length in phases(life, lives.end):
            colour = {"loading": _LOADING, "leaving": _LEAVING}.get(word, colours[life.model])
            for gpu in gpu_indices(life.gpus):
                bars.setdefault((gpu, colour), []).append((begin, length))
    many = sum(map(len, bars.values())) > _MOST_SHAPES
    for (gpu, colour), spans in bars.items():
        axes.broken_barh(spans, (gpu - 0.45, 0.9), facecolors=colour, linewidth=0, rasterized=many)
    axes.set(title=f"{name}: residents by GPU (black: loading)", ylabel="GPU", ylim=(gpus - 0.5, -0.5))
    axes.set_yticks(range(gpus))
    axes.set_xlim(0, max(lives.end / _HOUR, 1e-9))


def _draw_waits(axes: "Axes", lives: Lives) -> None:
    waited = [one for one in lives.waits if one.wait_s > 0]
    hours = [one.granted / _HOUR for one in waited]
    axes.scatter(hours, [one.wait_s for one in waited], s=4, color="#30507a", rasterized=len(waited) > _MOST_SHAPES)
    axes.set(xlabel="hours", ylabel="wait, s", ylim=(0, None))


def _draw_distributions(axes: "Axes", runs: Sequence[tuple[str, Lives]]) -> None:
    for name, lives in runs:
        waits, shares = distribution(lives)
        axes.plot([max(wait, _LEAST_S) for wait in waits], shares, label=name, drawstyle="steps-post")
    axes.set(
        title="waits",
        xlabel=f"wait, s ({_LEAST_S:g} and less at the left edge)",
        ylabel="share of requests",
        xscale="log",
    )
    axes.set_ylim(0, 1.01)
    axes.grid(visible=True, alpha=0.3)
    if runs:
        axes.legend(loc="lower right")


def _colours(runs: Iterable[Lives]) -> dict[ModelName, str]:
    """Give a colour to each model, who was longest on most GPUs first; there are fewer colours than models may be."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    gpu_time: dict[ModelName, int] = {}
    for lives in runs:
        for life in lives.lives():
            took = ((life.gone or lives.end) - life.booked) * life.gpus.bit_count()
            gpu_time[life.model] = gpu_time.get(life.model, 0) + took
    palette = colormaps["tab20"]
    vivid = [to_hex(palette(place)) for place in range(palette.N) if place not in _GREYS]
    ranked = sorted(gpu_time, key=lambda name: (-gpu_time[name], name))
    return dict(zip(ranked, itertools.chain(vivid, itertools.repeat(_OTHERS)), strict=False))


def _name_colours(figure: "Figure", colours: Mapping[ModelName, str]) -> None:
    from matplotlib.patches import Patch

    named = [(name, colour) for name, colour in colours.items() if colour != _OTHERS]
    others = [("others", _OTHERS)] if len(named) < len(colours) else []
    patches = [Patch(color=colour) for _, colour in (*named, *others)]
    names = [name.replace("$", r"\$") for name, _ in (*named, *others)]
    columns = max(1, _LINE // (_PATCH + max(map(len, names), default=0)))
    figure.legend(patches, names, loc="outside lower center", ncols=columns, fontsize="small")
