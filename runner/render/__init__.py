"""Results → site. Drawn from stored results alone: no test case, no decoder, no engine is needed."""

from runner.render.site import UndrawableRunError, render

__all__ = ["UndrawableRunError", "render"]
