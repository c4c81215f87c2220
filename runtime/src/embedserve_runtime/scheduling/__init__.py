"""Which inputs run together and when.

    policy        the rules, one synchronous class without clock or thread
    dispatcher    the shell around it: asyncio on one side, the engine's thread on the other
    deadlines     many deadlines with one timer
    calibration   measures the engine and chooses the token budget

Knows sequences of token ids and a function that runs a packed batch; nothing of models or HTTP.
"""
