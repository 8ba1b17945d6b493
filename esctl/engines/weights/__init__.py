"""Weights as files and as fp32 centers.

Open `model` for what a folder must be to be trained, `files` for which files hold its tensors and how they are read,
`center` for θ on the host (load, stage, commit, hash, save), `device` for θ on a GPU, `shards` for the pieces of tensor
parallelism. May import `noise` and the ground.
"""
