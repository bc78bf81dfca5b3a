"""Decides which model a path names, and what of the path its engine sees."""

from typing import NamedTuple

from swapd.core.ids import ModelName
from swapd.proxy.dialects import Dialect
from swapd.proxy.errors import invalid, unknown_model
from swapd.proxy.failure import RefusedError
from swapd.proxy.naming import name_in_path
from swapd.proxy.routes import Kind, Match, dialect_of
from swapd.proxy.services import Services
from swapd.proxy.upstream import split


class Address(NamedTuple):
    """Where a request goes whose path names its model."""

    model: ModelName
    #: path and query for the engine
    target: str
    #: in which errors are told
    dialect: Dialect


def address_of(services: Services, match: Match, method: str, target: str) -> Address:
    """Return the address of a request on a route that has a name in its path; raises ``RefusedError``."""
    assert match.path_name is not None
    if match.route.kind is not Kind.UPSTREAM:
        return Address(resolved(services, name_in_path(match.path_name)), target, match.route.dialect)
    model, path = split(match.path_name, services.directory.resolve)
    if not services.allowed(model, method, path):
        message = f"{method[:20]} {path[:200]} is no inference request of this model's engine and is not passed on."
        raise RefusedError(invalid(message, status=404, code="not_found"))
    query = target[len(target.partition("?")[0]) :]
    return Address(model, path + query, dialect_of(path))


def resolved(services: Services, name: str) -> ModelName:
    """Return the model that a name stands for; raises ``RefusedError``."""
    model = services.directory.resolve(name)
    if model is None:
        raise RefusedError(unknown_model(name))
    return model
