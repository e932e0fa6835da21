"""Draws the site from stored results. It needs only these results: no test case, no decoder and no Docker Engine."""

from runner.render.site import UndrawableRunError, render

__all__ = ["UndrawableRunError", "render"]
