"""A whole table from its definition: which runs it has, one run's work, and the results.

May import everything but `cli`.
"""
