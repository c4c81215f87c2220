"""Reports what the process does.

logs         JSON lines on standard error
redaction    keeps secrets out of them
metrics      the metrics page
requests     the metrics of requests
series       metric series in shared memory
tracing      traces over OTLP
termination  the termination message of the pod
"""
