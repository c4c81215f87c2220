"""Implements the command line.

cli            the entry point: signals, streams and exit codes
execution      reads the settings, runs a command, reports its error
arguments      the commands, and their options that are not settings
options        makes flags of all settings
param_types    Click parameter types for values such as durations
completion     the script for a shell, and completion of models
serve, fetch, convert, bench, inspect_model, store, self_test    one command each, with a function `run`
tables         tables on a terminal, lines elsewhere
progress_bars  how far long work is, on a terminal
signals        signals that end a command
output         the streams that a command writes to
"""
