"""Runs compared: which evaluations belong together, rows and pairs with intervals, tables, a report and plots.

Reads run directories and writes none. `settings`: what makes two numbers comparable. `selection`: which evaluation
represents a run. `groups`: seeds together. `rows`: every number, with intervals by `esctl.stats`. `compare`: the whole
table. `tables`: its formats. `questions`: what a table's definition may ask. `report`: the answers in sentences.
`curves` and `plots`: pictures. `references`: published rows. Start at `compare.compare(runs, CompareOptions())`. May
import `runs` and what is below it; no torch, no scipy.
"""
