"""Says which models have one copy of their weights in common, and with it one fetch.

Rules that hold here: models share a copy whose specifications name the same one. The weight cache fetches it once for
all who have ordered it, and tells each of them how that gets on; so what one of them was told goes for the others.
"""

from swapd.core.catalog import CopyKey, ModelSpec
from swapd.core.copies import Fetch
from swapd.core.node import Node
from swapd.core.state import Model


def copy_of(spec: ModelSpec) -> CopyKey:
    """Name the copy of a model's weights, shared or not."""
    return spec.copy or CopyKey(spec.name)


def sharers(node: Node, model: Model) -> list[Model]:
    """Return the configured models that have a model's copy in common, and the model itself."""
    copy = model.spec.copy
    if not copy:
        return [model]
    return [one for one in node.models.values() if one is model or (one.configured and one.spec.copy == copy)]


def fetches(node: Node, model: Model) -> list[tuple[Model, Fetch]]:
    """Return for whom a model's copy is fetched, each with the fetch as it knows it; once it has to end, it alone."""
    own = model.weights.fetch
    if own is not None and own.cancelled:
        return [(model, own)]
    known = ((one, one.weights.fetch) for one in sharers(node, model))
    return [(one, fetch) for one, fetch in known if fetch is not None and not fetch.cancelled]


def under_way(node: Node, model: Model) -> Fetch | None:
    """Return the fetch of a model, or one for another model that brings its copy as well."""
    fetch = model.weights.fetch
    if fetch is not None or not model.spec.copy or not node.fetching:
        return fetch
    return next((other for _, other in fetches(node, model)), None)
