"""The name server: routes as soft state, KV configuration kept consistent with PySyncObj."""
