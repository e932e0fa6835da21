"""Reading and writing untrusted files, and compressed logs."""
