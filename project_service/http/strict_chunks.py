"""twisted.web's reader of chunked bodies, with the strictness of the other parser's."""

from __future__ import annotations

import re

from twisted.web.http import _ChunkedTransferDecoder, _MalformedChunkedDataError

from project_service.http import fields

# RFC 9112 section 7.1: a recipient has to keep chunk sizes from overflowing; no body has more than 64 bits of bytes.
_TOO_MANY_BYTES = 1 << 64
# Nobody reads trailers, but what is none may be a request to somebody before us.
_TRAILER = re.compile(rf"[{fields.TCHAR}]+:[^{fields.CONTROL}]*\Z".encode())


class StrictChunks(_ChunkedTransferDecoder):
    """Refuses sizes that no body has and trailer lines that are no header."""

    def _dataReceived_CHUNK_LENGTH(self) -> bool:
        found = super()._dataReceived_CHUNK_LENGTH()
        if found and self.length >= _TOO_MANY_BYTES:
            raise _MalformedChunkedDataError("The chunk is too long.")
        return found

    def _dataReceived_TRAILER(self) -> bool:
        found = super()._dataReceived_TRAILER()
        # True says that a line has come, not that it was the last.
        if found and not _TRAILER.match(self._trailerHeaders.pop()):
            raise _MalformedChunkedDataError("A trailer is no header.")
        return found
