"""Callbacks: POST tasks to a URL, only to allowed hosts and checked addresses."""
