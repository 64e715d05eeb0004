"""The processes of a server: their common socket, the configuration of uvicorn, and the parent that replaces them."""
