"""Starts for federations: networks trained on made-up images alone, so nothing of them is anybody's."""
