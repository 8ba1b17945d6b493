"""The vLLM engine: candidates are written into the weights that vLLM serves, in its own process or in its ranks.

This file imports nothing: the worker processes of vLLM import it.
"""
