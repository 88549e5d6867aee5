"""Tests of the pure policy."""
