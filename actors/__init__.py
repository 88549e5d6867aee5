"""Thin Ray shells around the scheduler, the engine and the policy; they hold one value and one loop each."""
