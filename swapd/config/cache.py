"""Declares where the weights of a model come from, and the node's cache through which they come.

The text under a field is its documentation (see ``schema``).
"""

from typing import Annotated

from pydantic import Discriminator, Tag

from swapd.config import fields
from swapd.config.section import Section


class WeightsSource(Section):
    """Weights that come from elsewhere, through the node's cache."""

    source: fields.SourceUrl
    """Where they come from: `https://…` and `http://…` name one file, `file:///…` a file or a directory of this
    machine, such as a mounted store. `hf://organisation/name@revision` needs `swapd[hf]`, and asks the hub that
    `HF_ENDPOINT` names; `s3://bucket/prefix` needs `swapd[s3]`, and finds address and credentials as other tools of
    AWS do. Best name a revision that never changes."""

    include: fields.Patterns = ()
    """Patterns of the files that are wanted, with `*` and `?`, as in `["*.safetensors", "*.json"]`. None by default:
    all files."""

    sha256: fields.Sha256OrNull = None
    """Checksum of the file, where it is only one and the source does not promise a checksum itself. Without any, the
    size alone is compared."""


def _weights_kind(value: object) -> str:
    # no names of keys: an error's place is found by what is one
    return "from elsewhere" if isinstance(value, dict | WeightsSource) else "here"


#: a path of this machine, or a source
Weights = Annotated[
    Annotated[fields.WeightsPath, Tag("here")] | Annotated[WeightsSource, Tag("from elsewhere")],
    Discriminator(_weights_kind),
]


class Cache(Section):
    """The node's cache of weights that come from elsewhere. Only models with a `weights.source` use it."""

    path: fields.FilePathOrAuto = None
    """Folder of the cache, on a local disk. `auto` takes the first that can be written of `$CACHE_DIRECTORY`,
    `/var/cache/swapd` and `~/.cache/swapd`; it is made when the first model needs it. What lies in it and is not the
    cache's own is counted, and never touched. One daemon per folder. Restart to change it."""

    max_size: fields.SizeOrAuto = None
    """Most that the folder may hold, files that are being fetched included. `auto` is four fifths of the
    disk, less where `keep_free` leaves less. Copies that are needed least leave first."""

    keep_free: fields.Share = 0.1
    """Share of the disk that the cache leaves free, because a full disk harms everybody."""

    max_parallel_fetches: fields.Count = 2
    """Models that are fetched at the same time; others queue, and those that somebody waits for go first. Restart to
    change it."""

    bandwidth: fields.RateOrNone = None
    """Most that all fetches together take of the network, for example `500MB/s`. `none`, the default, is no limit.
    Restart to change it."""
