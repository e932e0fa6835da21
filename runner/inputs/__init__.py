"""What endpoints are given: files, certificates, page objects, environment."""
