"""gRPC beside HTTP: the same service and the same queue behind a port of its own. docs/grpc.md says what calls mean.

generated  the messages, made by `make protos` of the files under proto/
statuses   the one table from error classes to gRPC
calls      what surrounds every call: key, room, deadline, counting, errors
streams    answers in the order of their requests, with a bounded window
wire       arrays as fields of messages
tei        `tei.v1`, the API of Text Embeddings Inference
native     `embedserve.v1`
server     the port, with health and reflection
"""
