"""What users type."""
