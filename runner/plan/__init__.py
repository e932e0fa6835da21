"""The jobs of a run in their order, and the jobs that are left: the selection without the finished jobs."""
