"""Forms token-budget batches from queued requests.

    policy            the rules, one synchronous class without clock or thread
    queued_requests   the requests that wait, client by client
    batches           requests, scheduled batches and their outcomes
    clients           who shares a server, and the rates that each may use
    dispatcher        asyncio on one side, the executors on the other
    executors         the threads that run batches on a runner
    execution         runs one batch, and its parts where it fails
    outcomes          coroutines that wait for an outcome
    recovery          finds the inputs that a failed batch failed on
    health            tells an engine that is broken from a batch that failed
    calibration       measures the engine and chooses the token budget

Knows sequences of token ids and a function that runs a packed batch; nothing of models or HTTP.
"""
