"""Hands the core's notes to those who keep them: metrics, the event stream, timelines and the history."""

from swapd.admin.events import EventHub
from swapd.agent.timelines import Timelines
from swapd.core.commands import FootprintMeasured, LoadFinished, Note
from swapd.core.reasons import LoadResult
from swapd.history.database import Measured
from swapd.history.store import History
from swapd.metrics.collect import Metrics


class Notes:
    """Takes each note once."""

    def __init__(self, metrics: Metrics, hub: EventHub, timelines: Timelines, history: History) -> None:
        self._metrics = metrics
        self._hub = hub
        self._timelines = timelines
        self._history = history

    def take(self, note: Note) -> None:
        """Let everybody know whom it concerns."""
        self._metrics.observe(note)
        self._hub.publish(note)
        match note:
            case LoadFinished():
                self._timelines.finished(note)
                if note.result is LoadResult.READY:
                    self._history.record_load(note.model, note.source, note.load_time, note.stages)
            case FootprintMeasured():
                measured = Measured(note.revision, note.declared, note.measured)
                self._history.record_footprint(note.model, measured)
            case _:
                pass
