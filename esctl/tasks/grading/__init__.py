"""How an answer is graded: what stands in the text, what equals the gold, and the workers that run untrusted code.

answers   numbers, boxes and expressions in free text, compared exactly
latex     when two mathematical answers are the same
boxes     answers in \\boxed{} of a batch: cheap checks here, algebra in the pool
thoughts  where a thought ends and the answer begins
reward    grades become rewards, by weights or by a user's function
pool      worker processes with a time limit, replaced when they die;  worker: the program that runs in one

Which of these a user's own file takes (`task.grader`) is chosen in `tasks.file`.

A *grade* is a task's verdict on an answer; a *reward* is a sample's worth. May import `esctl.tasks` and the ground.
"""
