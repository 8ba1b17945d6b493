"""A whole table from its definition in `recipes/tables/`.

table  which runs it has, what is missing, what it would cost; then tables, plots and a report
row    all work on one run, in one process: training, evaluation, pass@k, sharpness

May import everything but `cli`.
"""
