"""esctl: post-train language models with Evolution Strategies, and compare the result honestly."""

__version__ = "0.1.0"
