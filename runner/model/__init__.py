"""The nouns of the project as frozen types. They use only the standard library, and compute only from their own
fields."""
