"""How an answer is graded: numbers, formulas, rewards, and the processes that graders run in."""
