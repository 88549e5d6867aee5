"""The whole server: Ray Serve, HTTP and a tiny model, as a user starts it."""
