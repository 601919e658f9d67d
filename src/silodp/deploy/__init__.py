"""Hospitals on machines of their own: what they agree on, what travels, and who has the last word."""
