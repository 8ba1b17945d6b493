"""Runs side by side: which evaluations compare, rows, pairs, tables, a report and plots.

Reads run directories and nothing else: no torch here. May import `runs` and all below.
"""
