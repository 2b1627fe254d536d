"""holdfast net."""
