"""The benchmark programs behind `mtp-serve bench`; they talk to servers as clients do."""
