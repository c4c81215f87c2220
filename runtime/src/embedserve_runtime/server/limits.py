"""Bounds of the HTTP server on bytes, connections and seconds. Read when they are needed, so that tests can scale them.

uvicorn has a bound on the idle time after an answer alone (https://github.com/Kludex/uvicorn/issues/157).
"""

from __future__ import annotations

MAX_HEAD_BYTES = 65_536
"""Bytes of a request line with its headers. A request is refused by the first read beyond it: at most 256 KiB later."""
MAX_HEADERS = 200
"""Headers of one request. Each takes some 200 bytes as objects, however short it is."""
MAX_OVERHEAD_PER_BODY_BYTE = 16
"""Bytes of chunk headers for each byte of a body, beyond `MAX_HEAD_BYTES`: a chunk of one byte takes six."""
MAX_CONNECTIONS = 16_384
"""Open connections of one process. A further one replaces the one that has been idle longest; where none is idle, it is
closed."""

IDLE_SECONDS = 75.0
"""Seconds that a connection without a request stays open. Longer than common load balancers keep one (60 s), so that
they close first and no request meets a closing connection."""
HEAD_SECONDS = 30.0
"""Seconds that a request's head may take, from its first byte to its last."""
MAX_DISCARDED_BYTES = 1_048_576
"""Bytes of a body that are read after its request was answered, so that the connection can serve another request."""
WRITE_SECONDS = 60.0
"""Seconds for which a client may read nothing of an answer."""
LINGER_SECONDS = 2.0
"""Seconds that a connection stays open after its last answer while the client is still sending, so that the client can
read the answer and close it."""
MAX_LINGER_BYTES = 1_048_576
"""Bytes that are still read from a connection whose request was refused as malformed."""
FIRST_REQUEST_SECONDS = 1.0
"""Seconds that a new connection is kept for its first request once the server stops: it may have been sent already."""
SWEEP_SECONDS = 1.0
"""Time between two checks of all connections; the time limits are that coarse."""
