"""Reads a request of plain form as far as swapd needs: which model, in which class, and whether a stream is wanted."""

from typing import NamedTuple

from yarl import URL

from swapd.core.catalog import Priority
from swapd.core.ids import ModelName
from swapd.proxy.address import address_of, resolved
from swapd.proxy.dialects import Dialect
from swapd.proxy.front.engine import Body
from swapd.proxy.front.heads import RequestHead
from swapd.proxy.gist import Gist
from swapd.proxy.model_name import BodyFields, read_json
from swapd.proxy.naming import name_beside_body, priority_named
from swapd.proxy.services import Services

_HIGH = Priority.HIGH


class Wish(NamedTuple):
    """What a client wants."""

    model: ModelName
    priority: Priority
    #: the client asked for a stream in the body
    streams: bool
    #: path and query for the engine; ``None``: as received
    target: bytes | None
    #: in which errors are told
    dialect: Dialect


def understand(services: Services, head: RequestHead, body: Body, gist: Gist | None) -> Wish:
    """Return what the client wants; ``gist`` has looked at the body while it came. Raises ``RefusedError``."""
    match = head.match
    assert match is not None
    dialect = match.route.dialect
    priority = _HIGH if head.priority is None else priority_named(head.priority)
    if match.path_name is not None:
        address = address_of(services, match, head.method_name, head.target.decode("ascii"))
        return Wish(address.model, priority, False, address.target.encode("ascii"), address.dialect)  # noqa: FBT003
    found = _fields(body, gist)
    name = found.model
    if name is None:
        query = head.target.partition(b"?")[2].decode("ascii")
        name = name_beside_body(URL.build(path="/", query_string=query, encoded=True).query, head.model)
    return Wish(resolved(services, name), priority, found.stream, None, dialect)


def _fields(body: Body, gist: Gist | None) -> BodyFields:
    if gist is not None and isinstance(body, memoryview):
        return gist.read(body)
    return read_json(body) if len(body) else BodyFields(None, stream=False)
