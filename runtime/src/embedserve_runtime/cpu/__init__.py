"""Fits the process to the machine's CPUs.

features      which arithmetic the processor has
quota         how many CPUs the process may use
nodes         NUMA nodes, and staying on one
split         how many go to the engine and how many to what is around it
huge_pages    memory in pages that cost less to look up
"""
