"""Measurements on this machine: step times and acceptance."""
