"""The stores, one folder each. Their interface is `engine.store.Store`."""
