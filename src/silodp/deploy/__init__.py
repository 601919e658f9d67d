"""The federation across machines: keys, kits, and who may ask whom for what."""
