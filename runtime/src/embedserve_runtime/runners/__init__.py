"""A loaded model behind one call: its engine with its heads."""
