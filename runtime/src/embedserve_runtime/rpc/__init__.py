"""gRPC beside HTTP: the same service and the same queue behind a port of its own. docs/grpc.md says what calls mean.

generated        the messages, made by `make protos` of the files under proto/
http_api         what is shared with the HTTP API
statuses         the one table from error classes to gRPC
calls            what holds for every call: key, log, counting, errors
messages         the bytes of messages read and parsed
memory           the memory that messages take, counted together with HTTP's bodies
ordered_answers  answers in the order of their requests, with a bounded window
handlers         methods as the library calls them
protobuf_fields  optional fields read, arrays written
tei              `tei.v1`, the API of Text Embeddings Inference
native           `embedserve.v1`
forwarding       calls that belong to another vector space
health           `grpc.health.v1`
reflection       `grpc.reflection.v1` and `.v1alpha`
server           the ports, with all of these services
front            the ports as a front end of the process
"""
