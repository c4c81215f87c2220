"""What a model is: its files, its description, its identity."""
