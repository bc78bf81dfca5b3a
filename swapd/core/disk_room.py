"""Decides which residents leave so that their copies make room on the disk for a fetch that waits.

Rules that hold here:

* They leave for the most urgent model whose fetch lacks room, under the guards of any eviction, the cheapest first, and
  only if what they and others leave behind is enough. Nobody leaves in vain. No GPU is booked meanwhile.
* A copy that is given up is not loaded until it is gone or the fetch goes on: somebody who comes back for it waits, or
  its room would never come free. What turns out not to help is used again.
* What is lacking is the weight cache's word. It does not count what is held; so who leaves counts until the next word.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from swapd.core.copies import Fetch
from swapd.core.eta import clearing_estimate
from swapd.core.eviction import candidates
from swapd.core.feasibility import infeasible
from swapd.core.fetching import give_back, keep_again
from swapd.core.guards import is_patient
from swapd.core.ids import Bytes, InstanceId, ModelName
from swapd.core.moves import evict
from swapd.core.node import Node
from swapd.core.reasons import State
from swapd.core.state import Instance, Model


class Giver(NamedTuple):
    """A resident that may leave, and what that would cost and give."""

    #: what the policy says that its loss costs
    cost: float
    instance: InstanceId
    #: size of its copy, bytes
    size: int


def choose(givers: Sequence[Giver], needed: int) -> tuple[InstanceId, ...]:
    """Return who leaves so that ``needed`` bytes come free, the cheapest first; nobody if all together are too few."""
    chosen: list[Giver] = []
    for giver in sorted(givers):
        if sum(one.size for one in chosen) >= needed:
            break
        chosen.append(giver)
    spare = sum(one.size for one in chosen) - needed
    if spare < 0:
        return ()
    for giver in reversed(chosen.copy()):
        if giver.size <= spare:
            chosen.remove(giver)
            spare -= giver.size
    return tuple(giver.instance for giver in chosen)


def note_lacking(node: Node, model: Model, fetch: Fetch, lacking: Bytes) -> None:
    """Enter how many bytes a fetch lacks; what was given up for it and is held by nobody is reckoned in that."""
    fetch.lacking = lacking
    for name in fetch.given:
        if not _is_leaving(node, name, model):
            fetch.given[name] = Bytes(0)


def make(node: Node) -> None:
    """Have residents leave for the first model whose fetch lacks room on the disk, if they can give enough."""
    waiting = [(model, fetch) for model in node.fetching.values() if (fetch := model.weights.fetch) is not None]
    waiting = [(model, fetch) for model, fetch in waiting if fetch.lacking or fetch.given]
    if not waiting:
        return
    for model, fetch in waiting:
        _take_back(node, model, fetch)
    for model, patient in _wanting(node):
        wanted = model.weights.fetch
        if wanted is None or wanted.cancelled or not wanted.lacking:
            continue
        if _lacking(wanted) <= 0 or _let_leave(node, model, wanted, patient=patient):
            break
    for model, fetch in waiting:
        if _lacking(fetch) > 0 and not any(_is_leaving(node, name, model) for name in fetch.given):
            give_back(node, model)


def _lacking(fetch: Fetch) -> int:
    return fetch.lacking - sum(fetch.given.values())


def _wanting(node: Node) -> Iterator[tuple[Model, bool]]:
    """Yield who may have others leave, the most urgent first, and whether it may override protection."""
    clearing = clearing_estimate(node)
    for name in node.pending:
        model = node.models[name]
        if model.orders or not node.manual:
            assert model.since is not None
            yield model, is_patient(node, model, model.since, clearing)
    if not node.manual:
        for model in node.pins.values():
            if model.instance is None and model.name not in node.pending:
                yield model, False


def _let_leave(node: Node, model: Model, fetch: Fetch, *, patient: bool) -> bool:
    """Order the residents to leave that make enough room; say whether there are any."""
    costs = candidates(node, patient=patient)
    givers = [
        Giver(cost, number, copy) for number, cost in costs.items() if (copy := _copy(node, node.instances[number]))
    ]
    victims = choose(givers, _lacking(fetch))
    if not victims or infeasible(node, model) is not None:
        return False
    names = ", ".join(node.instances[number].model.name for number in victims)
    model.story.add(node.at, f"the copies of {names} make room on the disk for its weights")
    for number in victims:
        victim = node.instances[number]
        weights = victim.model.weights
        assert weights.cached is not None
        weights.given_to, fetch.given[victim.model.name] = model.name, weights.cached
        evict(node, victim, model)
        node.unkept[victim.model.name] = victim.model
    return True


def _copy(node: Node, instance: Instance) -> int:
    """Return how many bytes the disk gets back when an instance leaves, and its copy after it; 0: none."""
    model, weights = instance.model, instance.model.weights
    alone = not any(other.model is model and other is not instance for other in node.instances.values())
    usable = model.spec.fetched and model.configured and instance.outdated_since is None
    if not alone or not usable or weights.verifying or weights.fetch is not None or model.pinned:
        return 0
    return weights.cached or 0


def _take_back(node: Node, heir: Model, fetch: Fetch) -> None:
    """Reckon no more with copies that cannot leave the disk after all: of leaked instances, of pinned models."""
    for name in list(fetch.given):
        model = node.models.get(name)
        leaked = any(i.model is model and i.state is State.LEAKED for i in node.instances.values())
        if model is None or leaked or model.pinned:
            del fetch.given[name]
            keep_again(node, model, heir)


def _is_leaving(node: Node, name: ModelName, heir: Model) -> bool:
    """Say whether a copy that is given up is held by nothing but an instance that leaves."""
    instances = (one for one in node.instances.values() if one.model.name == name)
    return any(one.state is State.UNLOADING and one.model.weights.given_to == heir.name for one in instances)
