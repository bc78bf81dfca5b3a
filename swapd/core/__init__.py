"""Decides: which model is resident where, who waits, who is served, who leaves.

Pure Python: no I/O, no clock, no randomness. Facts come in as events, orders go out as commands.
"""
