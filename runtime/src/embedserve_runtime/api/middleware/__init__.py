"""Surrounds every request with ASGI middleware; from the outside in:

request_context  identifies, counts, logs and traces the request, and answers errors
(CORS)           Starlette's own, where the settings ask for it
compression      compresses answers, where the settings and the client ask for it
forwarding       forwards requests to another vector space after the service's name has moved
api_key          refuses callers without a key, before a body is read
body             reads the body within bounds, decompresses it, and watches for a disconnect of the client
disconnect       how `body` watches
"""
