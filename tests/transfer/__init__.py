"""Tubes that go from store to store, and into files and back."""
