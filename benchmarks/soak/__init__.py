"""Half an hour of clients of all kinds, while the server is killed, and then while it is not."""
