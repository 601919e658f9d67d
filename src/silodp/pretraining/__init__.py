"""Starts for federations: networks that are trained on generated images only, so no patient is in them."""
