"""Reads a repository of the Hugging Face hub.

The hub's own library answers what is in the repository, who we are and where the hub is (``HF_ENDPOINT``,
``HF_TOKEN``, ``HF_HUB_OFFLINE``); the bytes come by our own requests, because only those can be resumed where we left
off, limited and counted.
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from swapd.core.ids import Bytes
from swapd.weights.sources.base import Checksum, Listing, RemoteFile, Source, SourceError, Stream
from swapd.weights.sources.http import open_range, patience_s

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

_URL: Final = re.compile(r"hf://(?P<repository>[^/@\s]+/[^/@\s]+|[^/@\s]+)(@(?P<revision>[^\s]+))?")


class HubSource(Source):
    """``hf://organisation/name@revision``; without a revision, ``main``."""

    def __init__(self, url: str, *, timeout_s: float = 30.0) -> None:
        told = _URL.fullmatch(url)
        if told is None:
            raise SourceError(f"{url} is not of the form hf://organisation/name@revision", permanent=True)
        try:
            import huggingface_hub  # noqa: F401 - an extra
        except ImportError as error:
            raise SourceError("hf:// needs huggingface_hub: install swapd[hf]", permanent=True) from error
        self._repository = told["repository"]
        self._revision = told["revision"] or "main"
        self._timeout_s = timeout_s

    @override
    def list(self) -> Listing:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        try:
            info = HfApi().model_info(
                self._repository, revision=self._revision, files_metadata=True, timeout=self._timeout_s
            )
        except HfHubHTTPError as error:
            status = error.response.status_code
            refused = 400 <= status < 500 and status not in (408, 429)
            raise SourceError(
                f"the hub answered {status} for {self._repository}@{self._revision}",
                permanent=refused,
                after_s=patience_s(error.response.headers.get("Retry-After"), error.response.headers.get("Date")),
            ) from error
        except (OSError, OfflineModeIsEnabled) as error:
            raise SourceError(f"the hub cannot be reached: {error}") from error
        except Exception as error:  # the library's HTTP client has errors of its own, and changes
            raise SourceError(f"the hub cannot be asked: {error}") from error
        revision = info.sha or self._revision
        files = tuple(self._files(info.siblings or (), revision))
        return Listing(revision[:12], files, lasting=info.sha is not None)

    def _files(self, siblings: "Iterable[RepoSibling]", revision: str) -> Iterable[RemoteFile]:
        from huggingface_hub import hf_hub_url

        for sibling in siblings:
            if not isinstance(sibling.size, int):
                raise SourceError(f"the hub does not say how large {sibling.rfilename!r} is", permanent=True)
            checksum = Checksum("git", sibling.blob_id) if sibling.blob_id else None
            if sibling.lfs is not None:
                checksum = Checksum("sha256", sibling.lfs.sha256)
            try:
                where = hf_hub_url(self._repository, sibling.rfilename, revision=revision)
            except UnicodeError as error:
                name = repr(sibling.rfilename)
                raise SourceError(f"the hub has a file named {name}, which cannot be kept", permanent=True) from error
            # the address names the revision, so it never has another content
            yield RemoteFile(sibling.rfilename, Bytes(sibling.size), where, "", checksum)

    @override
    def open(self, file: RemoteFile, start: int, stop: int) -> Stream:
        from huggingface_hub.utils._headers import build_hf_headers

        told = build_hf_headers().get("authorization")
        private = {"Authorization": told} if told else {}
        return open_range(file, start, stop, timeout_s=self._timeout_s, private=private)
