"""Forms token-budget batches from queued requests.

    policy        the rules, one synchronous class without clock or thread
    batches       requests, scheduled batches and their outcomes
    dispatcher    asyncio on one side, the executors on the other
    executors     the threads that run batches on a runner
    outcomes      coroutines that wait for an outcome
    recovery      finds the inputs that a failed batch failed on
    health        tells an engine that is broken from a batch that failed
    deadlines     many deadlines with one timer
    calibration   measures the engine and chooses the token budget

Knows sequences of token ids and a function that runs a packed batch; nothing of models or HTTP.
"""
