"""The frozen nouns of the project. Standard library only; no behaviour beyond arithmetic on their own fields."""
