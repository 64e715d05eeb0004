"""HTTP itself, below the vendors' APIs: reads bodies and headers, limits their memory, and paces streams."""
