"""Order books side by side with their peers, on the same events and one core."""
