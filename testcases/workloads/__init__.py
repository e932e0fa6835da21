"""What is asked of paths: one module each, with a `WORKLOAD`. Nothing else has to know of a new one."""
