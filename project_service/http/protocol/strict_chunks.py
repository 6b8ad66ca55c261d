"""twisted.web's decoder of chunked bodies, made as strict as llhttp, the other parser."""

from __future__ import annotations

import re

from twisted.web.http import _ChunkedTransferDecoder, _MalformedChunkedDataError

from project_service.http.protocol import fields

# RFC 9112 section 7.1: a recipient has to guard against overflow in chunk sizes. llhttp takes up to 64 bits.
_TOO_MANY_BYTES = 1 << 64
# Trailers are dropped, but a line that is not one is refused: a proxy before us might take it for a request.
_TRAILER = re.compile(rf"[{fields.TCHAR}]+:[^{fields.CONTROL}]*\Z".encode())


class StrictChunks(_ChunkedTransferDecoder):
    """Refuses impossible chunk sizes, and trailer lines that are not header lines."""

    def _dataReceived_CHUNK_LENGTH(self) -> bool:
        found = super()._dataReceived_CHUNK_LENGTH()
        if found and self.length >= _TOO_MANY_BYTES:
            raise _MalformedChunkedDataError("The chunk is too long.")
        return found

    def _dataReceived_TRAILER(self) -> bool:
        found = super()._dataReceived_TRAILER()
        # ``found`` is True for each line, also before the last.
        if found and not _TRAILER.match(self._trailerHeaders.pop()):
            raise _MalformedChunkedDataError("A trailer is no header.")
        return found
