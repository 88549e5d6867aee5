"""Tests of writing files."""
