"""Implements the command line.

cli            the entry point: reads the settings, runs a command, reports its error
arguments      the arguments of all commands
serve, fetch, convert, bench, inspect_model, store, self_test    one command each, with a function `run`
signals        how a command ends that is a container's first process
"""
