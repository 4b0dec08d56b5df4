"""Applications: functions that are put as tasks, and what their handlers may ask of the worker that runs them."""
