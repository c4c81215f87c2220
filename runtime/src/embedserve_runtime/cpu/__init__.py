"""Fits the process to the machine's CPUs.

features      the integer arithmetic that the processor has
quota         the number of CPUs that the process may use
nodes         NUMA nodes, and binding to one
split         divides the CPUs between the engine and the rest
huge_pages    moves memory to huge pages
priority      lets some threads of the process go before others
"""
