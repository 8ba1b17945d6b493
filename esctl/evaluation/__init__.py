"""Measuring one set of weights: greedy accuracy, pass@k, coverage, sharpness, and models trained elsewhere.

target         which weights a RUN or MODEL argument means, and where results about them go
evaluate       `esctl eval` and `esctl passk`;  draw: samples drawn in chunks, graded and stored
sampling       decodings, seeds and chunks
coverage       pass@k and diversity from stored samples
sharpness      candidates and numbers;  sharpness_run: the command, with a stored, resumable measurement
adopt          a model trained elsewhere becomes a run directory

May import `experiment`, `comparison` and all rooms below them.
"""
