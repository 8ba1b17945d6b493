"""The vLLM engine: candidates are written into the weights that vLLM serves, in its own process or in its ranks.

engine     `VLLMEngine`, the face: start, rollout, likelihoods, stop
ranks      calls to the worker extension on every rank, and one result from many
worker     what runs inside vLLM's worker: the center, the live weights, the watch on logits
layers     where a canonical tensor lies in vLLM's model: fused, cut into shards, padded, packed
processes  the processes of several ranks
patches    what is replaced in vLLM and multiprocessing, with the reasons

Exports nothing and imports nothing: vLLM's worker processes import it. May import `engines` and lower rooms.
"""
