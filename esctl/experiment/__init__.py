"""A recipe and what it refers to: schema, loading, model, problems, prompts, scoring, provenance.

`recipe` is the schema, `loading` reads and checks files, `experiment` opens what a recipe names, `scoring` turns
completions into the score of a candidate, `batches` says which problems a generation trains on, `provenance` records
who ran what, `rebuild` makes weights from scores, `estimates` says what it would cost. May import `runs` and all below.
"""
