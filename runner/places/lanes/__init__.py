"""Jobs in network namespaces of this host."""
