"""Written by `make protos`; a test fails when a file here is stale."""
