"""Weights as files and as fp32 centers.

Open `model` for which architectures can be trained, `files` for which files hold the tensors and what makes one
damaged, `center` for θ on the host (load, stage, commit, hash, save), `device` for θ on a GPU, `shards` for the pieces
of tensor parallelism. May import `noise` and the ground.
"""
