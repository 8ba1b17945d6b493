"""Training a run: the ES loop, its session, its logbook, jobs side by side, sweeps; RL trainers in `rl`.

May import `evaluation` and all below.
"""
