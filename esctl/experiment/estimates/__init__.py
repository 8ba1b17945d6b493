"""What a recipe would cost before it runs: rollouts, memory by formula, and what a dtype realises of a move."""
