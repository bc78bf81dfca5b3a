"""Decides what follows when an engine does not load weights that may be damaged.

Rules that hold here:

* A copy that was neither fetched nor verified since its last success is in doubt when an engine fails on it. Whoever
  waits goes on waiting while it is compared with its checksums.
* An intact copy clears itself: the failure counts as any other. A damaged one is given up and fetched anew, once; the
  next failure counts, and says that a fresh copy did not help.
"""

from typing import Final

from swapd.core.commands import VerifyWeights
from swapd.core.node import Node
from swapd.core.reasons import LoadFailure
from swapd.core.state import Model

#: failures that a damaged file can be the cause of
_SUSPICIOUS: Final = (LoadFailure.EXITED, LoadFailure.WARMUP, LoadFailure.SPAWN)


def doubted(node: Node, model: Model, failure: LoadFailure, detail: str, *, permanent: bool) -> bool:
    """Say whether a failed load puts the copy of its weights in doubt; if so, have it verified."""
    weights = model.weights
    in_doubt = model.spec.fetched and not weights.verified and not weights.verifying and not weights.renewed
    if not in_doubt or permanent or failure not in _SUSPICIOUS or weights.cached is None or weights.fetch is not None:
        return False
    weights.doubt = detail
    weights.verifying = True
    node.unkept[model.name] = model
    node.out.append(VerifyWeights(model.name))
    model.story.add(node.at, f"its weights are verified: {detail}")
    return True


def told(model: Model, detail: str) -> str:
    """Return the sentence of a failed load, with the word that a fresh copy did not help if that is so."""
    if not model.weights.renewed:
        return detail
    model.weights.renewed = False
    return f"{detail}; the copy of its weights was damaged, and with a fresh one it failed, too"
