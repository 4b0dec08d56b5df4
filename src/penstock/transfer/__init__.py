"""Move tubes between stores, and export and import them as files. Uses only the interface of stores."""
