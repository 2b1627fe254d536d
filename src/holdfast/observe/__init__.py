"""holdfast observe."""
