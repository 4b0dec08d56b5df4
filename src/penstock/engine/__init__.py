"""The engine: turns a verb into a change of what a database stores, by load, decide, flush."""
