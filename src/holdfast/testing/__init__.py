"""holdfast testing."""
