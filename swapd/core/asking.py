"""Decides when the driver is asked for a reading that somebody waits for; the regular ones go on beside it.

Rules that hold here:

* Asked is while the driver is there, and a release, the start of a load or a measurement waits for its word.
* At most one order is unanswered. The first one goes out at once; while waiting goes on the pause before the next one
  grows. Who begins to wait anew does not wait for the pause of the others.
* An answer that never comes blocks nobody: after a deadline it is asked for again.
"""

from typing import Final

from swapd.core.commands import ReadMemory
from swapd.core.foreign import UNSETTLED
from swapd.core.ids import MILLISECOND, SECOND, Duration, Instant
from swapd.core.node import Node
from swapd.core.reasons import State
from swapd.core.state import Instance

FIRST_PAUSE: Final = Duration(100 * MILLISECOND)
LONGEST_PAUSE: Final = Duration(2 * SECOND)
#: an order not answered by then is given up
ANSWER_DEADLINE: Final = Duration(10 * SECOND)


def hurry(node: Node) -> None:
    """Have the next order go out at once: somebody has begun to wait, and an older reading is of no use."""
    asking = node.asking
    asking.pause = Duration(0)
    asking.due = asking.wanted = node.at


def answered(node: Node, taken: Instant) -> None:
    """Take a reading that began at ``taken`` for the answer to the order, if it can be."""
    asking = node.asking
    if asking.since is None or taken < asking.since:
        return
    asking.since = None
    if taken >= asking.wanted:
        asking.pause = Duration(min(max(2 * asking.pause, FIRST_PAUSE), LONGEST_PAUSE))
        asking.due = Instant(node.at + asking.pause)


def ask(node: Node) -> None:
    """Order a reading if it is time."""
    moment = next_order(node)
    if moment is not None and moment <= node.at:
        node.asking.since = node.at
        node.out.append(ReadMemory())


def next_order(node: Node) -> Instant | None:
    """Return when a reading is to be ordered; ``None``: nobody waits for one."""
    if (
        not node.measured
        or not node.may_load
        or not any(_waits(node, instance) for instance in node.instances.values())
    ):
        return None
    asking = node.asking
    return asking.due if asking.since is None else Instant(asking.since + ANSWER_DEADLINE)


def _waits(node: Node, instance: Instance) -> bool:
    match instance.state:
        case State.RESERVED:
            return instance.gated_since is not None
        case State.READY | State.DRAINING:
            return instance.unmeasured > 0 and is_tellable(node, instance)
        case State.UNLOADING:
            stopping = instance.stopping
            assert stopping is not None
            return stopping.engine_gone
        case _:
            return False


def is_tellable(node: Node, instance: Instance) -> bool:
    """Say whether a reading can tell what an instance takes: no neighbour's memory is coming or going."""
    return not any(other.state in UNSETTLED for gpu in node.on(instance.gpus) for other in gpu.instances.values())
