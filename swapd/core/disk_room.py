"""Decides which residents leave so that their copies make room on the disk for a fetch that waits.

Rules that hold here:

* They leave for the most urgent model whose fetch lacks room, under the guards of any eviction, the cheapest first, and
  only if what they and others leave behind is enough. Nobody leaves in vain. No GPU is booked meanwhile.
* A copy that several models share goes when none of them holds it: their residents leave together or not at all, and
  its bytes count once.
* A copy that is given up is not loaded until it is gone or the fetch goes on: somebody who comes back for it waits, or
  its room would never come free. What turns out not to help is used again.
* What is lacking is the weight cache's word. It does not count what is held; so who leaves counts until the next word.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from swapd.core.catalog import CopyKey
from swapd.core.copies import Fetch
from swapd.core.eta import clearing_estimate
from swapd.core.eviction import candidates
from swapd.core.feasibility import infeasible
from swapd.core.fetching import give_back, given_up, keep_again
from swapd.core.guards import is_patient
from swapd.core.ids import Bytes, InstanceId
from swapd.core.moves import evict
from swapd.core.node import Node
from swapd.core.reasons import State
from swapd.core.shared_copies import copy_of, fetches, sharers
from swapd.core.state import Instance, Model


class Giver(NamedTuple):
    """The residents that may leave with one copy, and what that would cost and give."""

    #: what the policy says that their loss costs
    cost: float
    instances: tuple[InstanceId, ...]
    #: of the copy, bytes
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
    return tuple(instance for giver in chosen for instance in giver.instances)


def note_lacking(node: Node, model: Model, why: str, lacking: Bytes) -> None:
    """Enter how many bytes a fetch lacks; what was given up for it and is held by nobody is reckoned in that."""
    for heir, fetch in fetches(node, model):
        fetch.waits, fetch.lacking = why, lacking
        for copy in fetch.given:
            if not _is_leaving(node, copy, heir):
                fetch.given[copy] = Bytes(0)


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
        here = model.weights.cached is not None
        if here or wanted is None or wanted.cancelled or not wanted.lacking:
            continue
        if _lacking(node, model) <= 0 or _let_leave(node, model, wanted, patient=patient):
            break
    for model, fetch in waiting:
        if _lacking(node, model) > 0 and not any(_is_leaving(node, copy, model) for copy in fetch.given):
            give_back(node, model)


def _lacking(node: Node, model: Model) -> int:
    """Return what a model's fetch lacks beside all that is given up for it, for whichever of its models."""
    known = [fetch for _, fetch in fetches(node, model)]
    return max(fetch.lacking for fetch in known) - sum(sum(fetch.given.values()) for fetch in known)


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
    victims = choose(_givers(node, candidates(node, patient=patient)), _lacking(node, model))
    if not victims or infeasible(node, model) is not None:
        return False
    names = ", ".join(node.instances[number].model.name for number in victims)
    model.story.add(node.at, f"the copies of {names} make room on the disk for its weights")
    for number in victims:
        victim = node.instances[number]
        weights = victim.model.weights
        assert weights.cached is not None
        fetch.given[copy_of(victim.model.spec)] = weights.cached
        for one in sharers(node, victim.model):
            one.weights.given_to = model.name
            node.unkept[one.name] = one
        evict(node, victim, model)
    return True


def _givers(node: Node, costs: Mapping[InstanceId, float]) -> list[Giver]:
    """Return the copies that leave the disk after their residents, of those who may leave at these costs."""
    able = {copy_of(model.spec): model for number in costs if (model := node.instances[number].model).spec.fetched}
    givers = []
    for copy, model in able.items():
        residents = _residents(node, copy)
        size = model.weights.cached or 0
        if size and all(one.id in costs for one in residents) and not _is_kept(sharers(node, model), residents):
            givers.append(Giver(sum(costs[one.id] for one in residents), tuple(one.id for one in residents), size))
    return givers


def _residents(node: Node, copy: CopyKey) -> list[Instance]:
    """Return the instances that have a copy's files, or will; one that is outdated may have those of another copy."""
    return [one for one in node.instances.values() if copy in (copy_of(one.spec), copy_of(one.model.spec))]


def _is_kept(models: Sequence[Model], residents: Sequence[Instance]) -> bool:
    """Say whether a copy stays although its residents may leave."""
    changing = any(one.outdated_since is not None or not one.model.configured for one in residents)
    return changing or any(_holds(model) for model in models)


def _holds(model: Model) -> bool:
    """Say whether a copy stays for the sake of a model that has no instance."""
    weights = model.weights
    waited_for = model.since is not None and weights.given_to is None
    return model.pinned or waited_for or weights.verifying or weights.fetch is not None


def _take_back(node: Node, heir: Model, fetch: Fetch) -> None:
    """Reckon no more with copies that stay after all: of leaked instances, of models that hold them again."""
    for copy in list(fetch.given):
        models = given_up(node, copy, heir)
        residents = _residents(node, copy)
        stays = any(one.state is not State.UNLOADING or one.model not in models for one in residents)
        if models and (stays or any(_holds(one) for one in sharers(node, models[0]))):
            keep_again(node, copy, heir)


def _is_leaving(node: Node, copy: CopyKey, heir: Model) -> bool:
    """Say whether a copy that is given up is held by nothing but instances that leave."""
    residents = (one for one in _residents(node, copy) if one.state is State.UNLOADING)
    return any(one.model.weights.given_to == heir.name for one in residents)
