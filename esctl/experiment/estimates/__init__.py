"""What a recipe would cost, before it runs: numbers only, their text is in `cli.estimates`.

plan       rollouts, tokens and replay;  memory: bytes of each method by formula
precision  how much of a candidate and of a step a serving dtype realises
"""
