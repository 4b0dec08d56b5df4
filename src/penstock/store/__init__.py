"""Where tasks live. `base` is the contract; one module or folder per store keeps it."""
