"""Serves the HTTP API, with a router for each dialect.

app                    the FastAPI applications of the serving ports and of the management port
routers                the routes, one module for each dialect
schemas                bodies of requests and answers as pydantic models
middleware             what surrounds every request
json_route             a FastAPI route that parses its body with pydantic
context                what all requests share, and what is known of one
input_types            query or document, by the names of all dialects
embedding_options      the fields of `/v1/embeddings`, by the names of several APIs
inputs                 what all dialects read from a request
encoding               vectors to JSON and base64
chunked_answers        vectors of texts in chunks
native_response        the results of `/v1/encode`
vector_store_formats   vectors as vector stores read them
responses              answers whose body is bytes
errors                 the one table from error classes to HTTP
error_response         errors as answers
routes                 the paths, with their metric labels and error dialects
memory, json_limits, content_encoding    bounds of bodies
api_keys               which requests may come in
operator_calls         which calls of the management port are the operator's
watched_file           files that are read again when they change
self_check             whether the vectors are sound
openapi                API keys in the OpenAPI document
"""
