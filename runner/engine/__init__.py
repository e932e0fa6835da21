"""The Docker Engine: how it is found, its containers, and who owns them."""
