"""Fits a generic MTP head to a target that has none, on the target's own output."""
