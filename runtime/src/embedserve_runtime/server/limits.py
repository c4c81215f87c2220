"""Bounds of the HTTP server on bytes, connections and seconds. Read when they are needed, so that tests can scale them.

uvicorn has a bound on the idle time after an answer alone (https://github.com/Kludex/uvicorn/issues/157).
"""

from __future__ import annotations

MAX_HEAD_BYTES = 65_536
"""Of a request line with its headers. A request is refused by the first read beyond it: at most 256 KiB later."""
MAX_HEADERS = 200
"""Of a request. Each is some 200 bytes of objects, however short it is."""
MAX_OVERHEAD_PER_BODY_BYTE = 16
"""Bytes of chunk headers for each byte of a body, beyond `MAX_HEAD_BYTES`: a chunk of one byte takes six."""
MAX_CONNECTIONS = 16_384
"""Of one process at a time. A further one takes the place of the one that has been idle longest, or is closed."""

IDLE_SECONDS = 75.0
"""For a connection without a request. Longer than the idle time of common load balancers (60 s), so that they close
first and no request meets a closing connection."""
HEAD_SECONDS = 30.0
"""From the first byte of a request's head to its last."""
BODY_SECONDS = 60.0
"""For a body to arrive, and beyond that as long as it comes at `MIN_BODY_BYTES_PER_SECOND`."""
MIN_BODY_BYTES_PER_SECOND = 16_384
MAX_DISCARDED_BYTES = 1_048_576
"""Of a body that still comes in when the request is answered, for the connection to be of use afterwards."""
WRITE_SECONDS = 60.0
"""Without any byte of an answer being taken by the client."""
LINGER_SECONDS = 2.0
"""After the last answer on a connection whose client is still sending: for the client to close it."""
MAX_LINGER_BYTES = 1_048_576
"""That are still read of a connection whose request was refused as malformed."""
FIRST_REQUEST_SECONDS = 1.0
"""For the first request of a new connection once the server stops: it may have been sent already."""
SWEEP_SECONDS = 1.0
"""Between two looks at all connections; the time limits are that coarse."""
