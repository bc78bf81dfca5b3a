"""Decides which step an instance may take next; this table is the only place that knows.

Rules that hold here:

* A row says: in this state, for this cause, the instance goes there, and these orders go out with it. Whatever stands
  in no row is a programming error and raises with the instance's story.
* GPU memory is booked from RESERVED to the end. The end of a process does not free memory: only the driver's word
  (``MEMORY_RELEASED``) leads to GONE, and without it the bytes are quarantined in LEAKED, never assumed free. Where no
  driver can tell, the end of the whole engine counts for its word.
* A draining instance whose reason to drain has gone away (nobody waits for its room any more, the node is back in
  service) serves again. It was never stopped, so this costs nothing.
* The rows through SLEEPING, ASLEEP and WAKING belong to engines that can sleep.

What this file does not know: who decides, when, and what the orders look like.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from swapd.core.ids import InstanceId, Instant
from swapd.core.reasons import State


class Cause(enum.StrEnum):
    """Why an instance takes a step."""

    PLANNED = "room found or planned"
    ROOM_FREE = "every victim's memory confirmed released, and the room shown to be free"
    UNWANTED = "nobody waits any more, or what was waited for changed"
    WEIGHTS_WANTING = "its weights are not here, and are further off than room"
    ROOM_LOST = "memory was never released, is not shown to be free, or cannot be had any more"
    ENGINE_READY = "engine ready and warm-up request answered"
    ABORTED = "nobody waits and another model needs the room"
    GPU_FAILED = "one of its GPUs has failed or was lost"
    WITHDRAWN = "removed, changed, unloaded by an operator, or node drain"
    LOAD_FAILED = "failed or deadline"
    EXITED = "process exited"
    UNRESPONSIVE = "engine does not answer"
    EVICTED = "evicted (guards hold)"
    EVICTED_TO_SLEEP = "evicted, engine can sleep and host RAM allows"
    LEFT_IDLE = "idle: limit passed, outdated, or node drain"
    DRAIN = "removed, outdated, unloaded by an operator, a GPU failed, or reservation of another model"
    DRAINED = "in flight 0, or drain deadline"
    DRAIN_LIFTED = "nobody needs the drain any more"
    SLEPT = "engine is asleep"
    WAKE_PLANNED = "wanted again, room found"
    SLEEP_ENDED = "host RAM or residual GPU bytes needed"
    STOP_DEADLINE = "stop grace passed"
    MEMORY_RELEASED = "memory confirmed released"
    RELEASE_DEADLINE = "release deadline"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table."""

    before: State | None
    cause: Cause
    after: State
    #: what is ordered with it, for the reader
    orders: str


TABLE: Final = (
    Row(None, Cause.PLANNED, State.RESERVED, "stop or sleep each victim"),
    Row(State.RESERVED, Cause.ROOM_FREE, State.LOADING, "start"),
    Row(State.RESERVED, Cause.UNWANTED, State.GONE, "–"),
    Row(State.RESERVED, Cause.ROOM_LOST, State.GONE, "look for another room"),
    Row(State.RESERVED, Cause.WEIGHTS_WANTING, State.GONE, "fetch them first"),
    Row(State.LOADING, Cause.ENGINE_READY, State.READY, "forward every waiter"),
    Row(State.LOADING, Cause.ABORTED, State.UNLOADING, "stop (abort the load)"),
    Row(State.LOADING, Cause.WITHDRAWN, State.UNLOADING, "stop (abort the load)"),
    Row(State.LOADING, Cause.GPU_FAILED, State.UNLOADING, "stop (abort the load); look for another room"),
    Row(State.LOADING, Cause.LOAD_FAILED, State.UNLOADING, "stop; reject the waiters with one shared reason"),
    Row(State.LOADING, Cause.EXITED, State.UNLOADING, "reap the group; reject the waiters with one shared reason"),
    Row(State.READY, Cause.EVICTED, State.UNLOADING, "stop"),
    Row(State.READY, Cause.EVICTED_TO_SLEEP, State.SLEEPING, "sleep"),
    Row(State.READY, Cause.LEFT_IDLE, State.UNLOADING, "stop"),
    Row(State.READY, Cause.DRAIN, State.DRAINING, "–"),
    Row(State.READY, Cause.EXITED, State.UNLOADING, "reap the group"),
    Row(State.READY, Cause.UNRESPONSIVE, State.UNLOADING, "stop"),
    Row(State.DRAINING, Cause.DRAINED, State.UNLOADING, "cut what is left, stop"),
    Row(State.DRAINING, Cause.EVICTED, State.UNLOADING, "stop"),
    Row(State.DRAINING, Cause.DRAIN_LIFTED, State.READY, "forward waiters to free slots"),
    Row(State.DRAINING, Cause.EXITED, State.UNLOADING, "reap the group"),
    Row(State.DRAINING, Cause.UNRESPONSIVE, State.UNLOADING, "stop"),
    Row(State.SLEEPING, Cause.SLEPT, State.ASLEEP, "–"),
    Row(State.SLEEPING, Cause.EXITED, State.UNLOADING, "reap the group"),
    Row(State.ASLEEP, Cause.WAKE_PLANNED, State.WAKING, "wake (then warm-up)"),
    Row(State.ASLEEP, Cause.SLEEP_ENDED, State.UNLOADING, "stop"),
    Row(State.ASLEEP, Cause.EXITED, State.UNLOADING, "reap the group"),
    Row(State.WAKING, Cause.ENGINE_READY, State.READY, "forward every waiter"),
    Row(State.WAKING, Cause.LOAD_FAILED, State.UNLOADING, "stop; reject the waiters with one shared reason"),
    Row(State.WAKING, Cause.EXITED, State.UNLOADING, "reap the group"),
    Row(State.UNLOADING, Cause.STOP_DEADLINE, State.UNLOADING, "kill (once)"),
    Row(State.UNLOADING, Cause.MEMORY_RELEASED, State.GONE, "settle the queue"),
    Row(State.UNLOADING, Cause.RELEASE_DEADLINE, State.LEAKED, "quarantine those bytes, report"),
    Row(State.LEAKED, Cause.MEMORY_RELEASED, State.GONE, "settle the queue"),
)

_AFTER: Final = {(row.before, row.cause): row.after for row in TABLE}


class InvalidTransitionError(Exception):
    """A step that stands in no row: a defect of the core, told with the instance's story."""


def after(
    before: State | None, cause: Cause, *, instance: InstanceId, story: Iterable[tuple[Instant, str]] = ()
) -> State:
    """Return the state that ``cause`` leads to; raise InvalidTransitionError where the table has no such row."""
    state = _AFTER.get((before, cause))
    if state is None:
        told = "\n".join(f"  {at / 1e9:.3f} s  {line}" for at, line in story)
        raise InvalidTransitionError(
            f"instance {instance}: no step from {_name(before)} for {cause.name} ({cause}); its story:\n{told}"
        )
    return state


def as_mermaid() -> str:
    """Return the table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2"]
    for row in TABLE:
        source = "[*]" if row.before is None else row.before.value
        lines.append(f"    {source} --> {row.after.value}: {row.cause}")
    lines.append(f"    {State.GONE.value} --> [*]")
    return "\n".join(lines) + "\n"


def as_markdown() -> str:
    """Return the table as a Markdown table, for the docs."""
    lines = ["| from | cause | to | orders |", "|---|---|---|---|"]
    lines += [f"| {_name(row.before)} | {row.cause} | {_name(row.after)} | {row.orders} |" for row in TABLE]
    return "\n".join(lines) + "\n"


def _name(state: State | None) -> str:
    return "–" if state is None else state.name
