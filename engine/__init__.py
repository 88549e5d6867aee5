"""One process's token loop: loading, sequences, sampling and lanes; knows neither Ray nor HTTP.

This file imports nothing: an optimised BLAS has to be loaded before the first import of MLX
(see `engine.blas`).
"""
