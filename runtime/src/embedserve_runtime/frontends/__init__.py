"""Front-end processes: N of them speak HTTP and tokenise, one process schedules and runs the engine.

    frames      what passes between them, as bytes
    link        one end of a connection: frames in, frames out
    remote      the dispatcher as a front end sees it
    hub         the front ends as the engine's process sees them
    supervisor  starts, replaces and ends the processes
    worker      the process itself

A front end loads no weights and no engine library. The engine's process reads no HTTP but that of its management port.
"""
