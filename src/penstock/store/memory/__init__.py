"""The memory store: tasks in the memory of this process, gone with it."""
