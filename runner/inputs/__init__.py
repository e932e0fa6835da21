"""The inputs of endpoints: files, certificates, page objects, environment."""
