"""The vocabulary of every process border: frozen msgspec structs, nothing else."""
