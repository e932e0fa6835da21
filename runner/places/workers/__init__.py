"""Workers on other hosts, which run the jobs of a runner through a Dask scheduler (`dask.distributed`, optional)."""
