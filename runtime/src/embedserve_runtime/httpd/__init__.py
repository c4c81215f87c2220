"""HTTP/1.1 for an ASGI application: the parser is httptools', the bounds are ours. Knows no route and no model.

head        bytes of status lines and headers
repeat      heads that a client sends again and again
turn        one request and its answer, as ASGI sees them, and without a task
incoming    one client's bytes to requests
connection  one client: its requests answered in their order, keep-alive, the end of it
server      the listening socket: accepting, time limits, the end
"""
