"""Runs front ends in this process or in several.

Where there are several, each of them speaks HTTP and tokenizes, and one process schedules and runs the engine.

    front_end          the interface of whatever answers clients, and the values it is given
    in_process         the engine's process answers itself
    auto_sized         the number of processes is measured first
    messages           what passes between them
    codec              messages as bytes
    message_socket     a ZeroMQ socket on the event loop
    front_end_channel  the engine's process as a front end sees it
    remote_dispatcher  the dispatcher as a front end sees it
    engine_channel     the front ends as the engine's process sees them
    supervisor         starts, replaces and ends the processes
    worker             the process itself

A front end loads no weights and no engine library. The engine's process reads no HTTP but that of its management port.
"""
