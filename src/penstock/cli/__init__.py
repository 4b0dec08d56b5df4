"""The command line: parses, calls the library, and shows what came back."""
