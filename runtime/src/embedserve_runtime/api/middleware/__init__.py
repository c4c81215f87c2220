"""Surrounds every request with ASGI middleware; from the outside in:

request_context  identifies, counts, logs and traces the request, and answers errors
(CORS)           Starlette's own, where the settings ask for it
compression      compresses answers, where the settings and the client ask for it
forwarding       forwards requests to another vector space after the service's name has moved
space_client     how `forwarding` sends them
client           tells clients apart, and refuses those without a key
head             refuses requests for what their head says, before a body is asked for
body             reads the body within bounds, decompresses it, and watches for a disconnect of the client
disconnect       how `body` watches
"""
