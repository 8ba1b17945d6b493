"""Many engines as one `Engine`, through Ray: workers on several devices or machines share the candidates of a round.

engine    `Fleet`, the face: splits a round into jobs and keeps all workers at the same weights
workers   `WorkerPool`: starts workers, hands out jobs, requeues the jobs of a worker that died, compares weights
replica   what runs in a worker's process: one engine
cluster   Ray itself: join or start it, count what fits, stop it
patches   the private names of Ray that are replaced, with the reasons

Exports nothing: `esctl.engines.open_engine` imports `Fleet` from `engine`. May import `engines` and lower rooms.
"""
