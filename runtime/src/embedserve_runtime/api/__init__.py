"""HTTP: one module a dialect on top of `service`.

app        paths to endpoints, for the serving and the management port
endpoint   one route as plain ASGI: bounded body, handler, answer or error, metrics
errors     the one table from error classes to HTTP
schemas    request bodies; encoding: vectors to JSON; openapi: the document, made from the schemas
tei, openai, health, docs_page   the routes
"""
