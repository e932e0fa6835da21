"""The terms of the project as frozen types. They need no library besides Python's own, and their methods compute only
from their own fields."""
