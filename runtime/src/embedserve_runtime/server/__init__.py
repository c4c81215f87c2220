"""Runs uvicorn in the process's event loop.

It parses with httptools, and knows no route and no model.

limits            bounds on bytes, connections and time
sockets           listening sockets, alone on a port or sharing it
protocol          uvicorn's protocol class with the bounds that it lacks
answer_transport  writes the head of an answer with its body
http_server       uvicorn's server class, started and stopped by the process instead of by signals
"""
