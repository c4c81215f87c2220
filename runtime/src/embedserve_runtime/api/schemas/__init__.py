"""Bodies of requests and answers as pydantic models: they decode the JSON, and OpenAPI is made from them.

`base` has what the models share, `reading` turns JSON into them; the other modules are the dialects.
"""
