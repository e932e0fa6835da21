"""A real path made of namespaces: two hosts with an SSH server and a Docker Engine each, NAT, and a satellite link."""
