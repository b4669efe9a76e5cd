"""Snapshot -> integer arrays: pod sets, shapes, node classes, queues, running units."""
