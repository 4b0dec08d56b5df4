"""The engine: turns a verb into a change of stored rows, by load, decide, flush."""
