"""The Docker Engine: connection, containers, and their owners."""
