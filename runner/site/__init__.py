"""The site: results → pages."""

from runner.site.site import UndrawableRunError, render

__all__ = ["UndrawableRunError", "render"]
