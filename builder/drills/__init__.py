"""Drills: what operators must be able to rely on, tried on a real server under live load."""
