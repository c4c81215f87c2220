"""Defines the bodies of requests and answers as pydantic models, which parse the JSON and make the OpenAPI document.

base               what the models share
parsing            JSON to models
compatibility      what becomes of the fields of other APIs
validation_errors  why a body was refused
probes             bodies of the probes and the management port
The other modules are the dialects.
"""
