"""Weights as files and as fp32 centers: which tensors a model has, where θ is kept, how a tensor is cut into shards."""
