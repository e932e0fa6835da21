"""Tests builds of a stack before others meet them: `check`, `ci` and the hostile peer."""
