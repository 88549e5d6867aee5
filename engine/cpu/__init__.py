"""How an mlx-lm model is run on a CPU, where many small operations and exponentials are what is slow.

Owns replacements that compute the same function. Knows modules and functions of mlx-lm, no family and no
request. On a GPU nothing here is used: its kernels are fused already.
"""
