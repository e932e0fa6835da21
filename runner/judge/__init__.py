"""What is judged from facts: whether there is evidence for a verdict, and rules that hold for every connection."""
