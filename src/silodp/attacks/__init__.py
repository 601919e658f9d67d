"""Attacks on a federation: audits of ε, and reconstruction of images from updates."""
