"""Decides which weights are fetched, and which fetches end before they are done.

Rules that hold here:

* Fetched is what is missing and wanted: by somebody who waits (then it goes first) or ahead, for a pin, for a model
  that comes back after a change, for a placer's order, or because a request was refused for its ETA.
* A fetch that nobody wants any more goes on: its bytes serve the next request. The end of the node's service, another
  configuration of the model, or its removal end it.
* Models that share a copy share a fetch of it: whoever joins knows how it gets on, and what its room costs others is
  paid once.
* In manual mode nothing is fetched but by an operator's word. A model that cools down is not tried, unless an operator
  wants its weights.
"""

from dataclasses import replace

from swapd.core.catalog import CopyKey
from swapd.core.commands import Answer, CancelFetch, FetchWeights
from swapd.core.copies import Fetch
from swapd.core.ids import Bytes
from swapd.core.node import Node
from swapd.core.reasons import Rejection, State
from swapd.core.shared_copies import copy_of, fetches, under_way
from swapd.core.state import Model


def consider(node: Node, model: Model) -> None:
    """Have a model looked at whose weights may have become wanted, or missing."""
    if model.spec.fetched and model.weights.cached is None:
        node.hungry[model.name] = model


def order_missing(node: Node) -> None:
    """Order whatever is missing and wanted; who cannot be helped now is looked at again."""
    for name, model in list(node.hungry.items()):
        ahead = _wanted(node, model)
        if ahead is None:
            del node.hungry[name]
        elif not _must_wait(node, model):
            del node.hungry[name]
            _order(node, model, ahead=ahead)


def _order(node: Node, model: Model, *, ahead: bool) -> None:
    fetch = model.weights.fetch
    if fetch is not None and (ahead or not fetch.ahead):
        return
    if fetch is None:
        begin(node, model, ahead=ahead)
        model.story.add(node.at, "its weights are fetched" + (" ahead" if ahead else ""))
    else:
        fetch.ahead = False
    node.out.append(FetchWeights(model.name, ahead))


def begin(node: Node, model: Model, *, ahead: bool) -> None:
    """Enter a fetch that is ordered now; one that is under way for another model is joined as it stands."""
    assert model.weights.fetch is None, f"the weights of {model.name} are being fetched already"
    model.weights.fetch = _joined(under_way(node, model), Fetch(node.at, ahead))
    node.fetching[model.name] = model
    node.unkept[model.name] = model


def _joined(other: Fetch | None, fetch: Fetch) -> Fetch:
    if other is None:
        return fetch
    return replace(
        fetch,
        running=other.running,
        told=other.told,
        first=other.done,
        done=other.done,
        total=other.total,
        rate=other.rate,
        waits=other.waits,
        lacking=other.lacking,
    )


def end(node: Node, model: Model) -> None:
    """Enter that a fetch was answered."""
    goes_on(node, model)
    model.weights.fetch = None
    del node.fetching[model.name]
    node.unkept[model.name] = model
    consider(node, model)


def goes_on(node: Node, model: Model) -> None:
    """Note, for all whom it is for, that a fetch does not wait for room on the disk."""
    for one, fetch in fetches(node, model):
        fetch.waits, fetch.lacking = "", Bytes(0)
        give_back(node, one)


def give_back(node: Node, heir: Model) -> None:
    """Let copies be used again that were given up for a fetch and are still there."""
    fetch = heir.weights.fetch
    assert fetch is not None, f"no weights of {heir.name} are being fetched"
    for copy in list(fetch.given):
        keep_again(node, copy, heir)


def keep_again(node: Node, copy: CopyKey, heir: Model) -> None:
    """Let one copy be used again that was given up for this heir, if it is still there."""
    fetch = heir.weights.fetch
    assert fetch is not None, f"no weights of {heir.name} are being fetched"
    del fetch.given[copy]
    for model in given_up(node, copy, heir):
        model.weights.given_to = None
        node.unkept[model.name] = model
        node.changes += 1


def given_up(node: Node, copy: CopyKey, heir: Model) -> list[Model]:
    """Return the models that do without a copy in favour of this heir."""
    return [m for m in node.models.values() if m.weights.given_to == heir.name and copy_of(m.spec) == copy]


def cancel(node: Node, model: Model) -> None:
    """End a fetch before it is done."""
    fetch = model.weights.fetch
    if fetch is not None and not fetch.cancelled:
        _hand_on(node, model, fetch)
        fetch.cancelled = True
        node.out.append(CancelFetch(model.name))
        model.story.add(node.at, "the fetch of its weights is ended")
        consider(node, model)


def _hand_on(node: Node, model: Model, fetch: Fetch) -> None:
    """Let what was given up for a fetch that ends for one model be for those for whom it goes on."""
    heirs = [(one, other) for one, other in fetches(node, model) if one is not model]
    for heir, other in heirs[:1]:
        for copy, size in fetch.given.items():
            other.given[copy] = size
            for giver in given_up(node, copy, model):
                giver.weights.given_to = heir.name
        fetch.given.clear()


def cancel_all(node: Node, detail: str) -> None:
    """End every fetch: the node leaves service. What was wanted for the next request is wanted no more."""
    for model in list(node.fetching.values()):
        cancel(node, model)
    for model in [*node.fetching.values(), *node.hungry.values()]:
        model.weights.ahead = False
        answer_prefetches(node, model, ok=False, detail=detail, reason=Rejection.DRAINING)


def answer_prefetches(node: Node, model: Model, *, ok: bool, detail: str, reason: Rejection | None = None) -> None:
    """Tell the operators who wait for a model's weights what came of it."""
    for order in model.weights.prefetches:
        node.out.append(Answer(order, ok, detail, reason))
    model.weights.prefetches.clear()


def _wanted(node: Node, model: Model) -> bool | None:
    """Return ``None`` if nobody wants weights that are missing, else whether nobody waits for them yet."""
    weights, instance = model.weights, model.instance
    if not model.spec.fetched or not model.configured or weights.cached is not None:
        return None
    to_come = instance is None or instance.state in (State.RESERVED, State.DRAINING)
    if to_come and (model.orders or (model.queue and not node.manual)):
        return False
    outdated = instance is not None and instance.outdated_since is not None
    if weights.prefetches or outdated or model.name in node.wishes:
        return True
    return True if not node.manual and (model.pinned or weights.ahead) else None


def _must_wait(node: Node, model: Model) -> bool:
    """Say whether missing weights cannot be ordered now."""
    weights = model.weights
    if node.drain is not None or weights.verifying or (weights.fetch is not None and weights.fetch.cancelled):
        return True
    cooling = model.cooling_until is not None and node.at < model.cooling_until
    return cooling and not (weights.prefetches or model.orders)
