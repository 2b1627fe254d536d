"""holdfast cli."""
