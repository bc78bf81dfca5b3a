"""Reads a large JSON body while it comes, so that little of it is left to be parsed at its end.

A stretch that lies within one string, or that is numbers in a row, is checked where it stands and then left out: the
rest, read by ``read_json``, says what the whole would say. For that to be true

* a stretch is left out only if it would be correct JSON where it stands; every error before it is in the rest;
* where it stands is known by counting the quotes before it: an odd number of them means within a string;
* numbers keep a neighbour and its comma on either side, so that a place where no number may follow stays wrong;
* a string keeps so many characters that it stays too long for a name, and cannot become another key;
* the cuts part neither an escape nor a character.

If the rest is refused, the whole is read: its sentence is the one that counts, and what is tolerated in it.
"""

import sys
from typing import Final

import msgspec
from pydantic_core import SchemaValidator, core_schema

from swapd.proxy.failure import RefusedError
from swapd.proxy.model_name import BodyFields, read_json

BLOCK: Final = 256 << 10
"""Bytes that are looked at in one go."""
_FIRST: Final = 16 << 10
"""In the first go; most bodies begin with what cannot be left out."""
ENOUGH: Final = 4
"""So much work takes a fraction of a millisecond, after which others want the loop."""
_TEXT: Final = 1
_NUMBERS: Final = 4
"""Work for a block."""
_COUNT: Final = 4
"""Work for as many blocks as quotes are counted in at once."""
_COUNTED: Final = 2
"""Blocks: twice as many as come meanwhile, so that it catches up with what had short strings only."""
_KEPT: Final = 4 << 10
"""Of a string; a character is twelve bytes at most."""
_LONGEST_ESCAPE: Final = 6
_NEAR: Final = 64
"""Bytes in which a place for a cut is looked for."""
_MOST_JOINED: Final = 8 << 20
"""The rest is a copy; where it is larger than this the whole is read as it stands."""
_NEVER: Final = sys.maxsize

_ARRAY: Final = msgspec.json.Decoder(msgspec.Raw)
_STRING: Final = SchemaValidator(core_schema.typed_dict_schema({}, extra_behavior="ignore"))
"""Reads long strings several times as fast as msgspec, and everything else more slowly."""
_BEFORE: Final = b'{"":"'
_AFTER: Final = b'"}'
_SHEET: Final = bytearray(_BEFORE).ljust(len(_BEFORE) + BLOCK + _NEAR + len(_AFTER))
_PAPER: Final = memoryview(_SHEET)
"""Text is checked here, by one at a time: to take new memory for each block would cost more than the check."""


class Gist:
    """What must be read at the end of a body of which the beginning is in memory."""

    __slots__ = ("_counted", "_cuts", "_inside", "_next", "_start")

    def __init__(self) -> None:
        #: begin and end of what is left out
        self._cuts: list[tuple[int, int]] = []
        #: the next block begins here, and ends near there
        self._start, self._next = 0, _FIRST
        #: quotes are counted up to here, and here is within a string
        self._counted, self._inside = 0, False

    def look(self, memory: bytearray, end: int) -> int:
        """Look at what has come up to ``end``; return how much work that was, see ``ENOUGH``."""
        work = 0
        while end > self._next:
            at = _place_for_a_cut(memory, self._next)
            start, self._next = self._start, self._next + BLOCK
            if at is not None:
                self._start = at
                work += self._look_at(memory, start, at)
        return work

    def read(self, body: memoryview) -> BodyFields:
        """Return what ``read_json`` says of the whole body, all of which has been looked at as it came."""
        if self._cuts and len(body) - sum(end - start for start, end in self._cuts) <= _MOST_JOINED:
            begins = [0, *(end for _, end in self._cuts)]
            ends = [*(start for start, _ in self._cuts), len(body)]
            rest = b"".join([body[begin:end] for begin, end in zip(begins, ends, strict=True)])
            try:
                return read_json(rest, tolerant=False)
            except RefusedError:
                # it has the reason, but not the place
                pass
        return read_json(body)

    def _look_at(self, memory: bytearray, start: int, end: int) -> int:
        # where it goes on from text that was left out, that is probably text, too, and looked at as such
        if self._counted < start:
            if memory.find(b'"', start, end) >= 0:
                return 0
            if not self._count(memory, start):
                return _COUNT
        if self._inside:
            if _is_text(memoryview(memory)[start:end]):
                self._counted = end
                self._leave_out_text(memory, start, end)
            return _TEXT
        if memory.find(b'"', start, end) >= 0:
            return 0
        self._counted = end
        self._leave_out_numbers(memory, start, end)
        return _NUMBERS

    def _leave_out_text(self, memory: bytearray, start: int, end: int) -> None:
        if self._cuts and self._cuts[-1][1] == start:
            self._cuts[-1] = (self._cuts[-1][0], end)
            return
        after = _place_for_a_cut(memory, start + _KEPT)
        if after is not None:
            self._cuts.append((after, end))

    def _leave_out_numbers(self, memory: bytearray, start: int, end: int) -> None:
        """Leave out what stands between the first comma and the last but one."""
        first, last = memory.find(b",", start, end), memory.rfind(b",", start, end)
        last = memory.rfind(b",", first + 1, last) if first < last else -1
        if last < 0 or memory.find(b"[", first, last) >= 0 or memory.find(b"{", first, last) >= 0:
            # of brackets the deepest place could be left out
            return
        try:
            _ARRAY.decode(b"".join((b"[0", memoryview(memory)[first:last], b"]")))
        except msgspec.DecodeError:
            return
        self._cuts.append((first + 1, last + 1))

    def _count(self, memory: bytearray, end: int) -> bool:
        """Count quotes up to ``end``; ``False``: not so far in one go, or not at all."""
        for _ in range(_COUNTED):
            upto: int | None = end
            if end - self._counted > BLOCK:
                upto = _place_for_a_cut(memory, self._counted + BLOCK)
            if upto is None:
                self._next = _NEVER
                return False
            text = bytes(memoryview(memory)[self._counted : upto])
            quotes = text.count(b'"')
            if b"\\" in text:
                quotes -= text.replace(b"\\\\", b"").count(b'\\"')
            self._inside ^= quotes % 2 == 1
            self._counted = upto
            if upto == end:
                return True
        return False


def _is_text(block: memoryview) -> bool:
    """Tell whether a block can stand within a string, and has no quotes."""
    end = len(_BEFORE) + len(block)
    if end + len(_AFTER) > len(_PAPER):
        return False
    # the copy is in the processor's cache, which what has just come is not
    _PAPER[len(_BEFORE) : end] = block
    _PAPER[end:] = _AFTER.ljust(len(_PAPER) - end)
    if _SHEET.find(b'"', len(_BEFORE), end) >= 0:
        return False
    try:
        _STRING.validate_json(_SHEET)
    except ValueError:
        return False
    return True


def _place_for_a_cut(memory: bytearray, near: int) -> int | None:
    """Return where neither an escape nor a character is parted, not far before ``near``; ``None``: nowhere."""
    for at in range(near, near - _NEAR, -1):
        if memory[at] & 0xC0 != 0x80 and memory.find(b"\\", at - _LONGEST_ESCAPE, at) < 0:
            return at
    return None
