"""Training a run, and many runs side by side.

session      one command on one run: create or resume its directory, start the engine, say how it ended
evolution    the ES loop, and when it ends; it knows no method by name
logbook      what is recorded while a run trains: record, evaluations, failures, time left
events       what a run reports to whoever shows progress;  tensorboard: the same for a tracker
jobs         processes side by side, stopped together;  sweep: a grid of settings times seeds
rl/          GRPO and PPO

May import `evaluation` and all rooms below it.
"""
