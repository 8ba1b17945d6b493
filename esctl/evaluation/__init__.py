"""Measuring one set of weights: greedy accuracy, pass@k, coverage, sharpness, and models trained elsewhere.

May import `experiment`, `comparison` and all below.
"""
