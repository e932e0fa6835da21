"""What is judged from facts: rules that hold for every connection."""
