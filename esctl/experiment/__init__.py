"""A recipe and what it refers to: model, tokenizer, problems, prompts, grader, reward.

recipe      the schema: every key, its type and its default;  loading: YAML, `--set` and all mistakes at once
experiment  opens what a recipe names, before any weight is loaded
batches     which problems a generation trains on
scoring     completions become the score of a candidate, and an objective such as pass@k
provenance  who ran what: versions, command, git, peak memory
rebuild     the weights of any generation, from recorded scores
estimates/  what it would cost;  models: chat models from a package index

May import `runs` and all rooms below it; not `comparison`.
"""
