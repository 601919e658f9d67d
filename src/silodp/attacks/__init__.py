"""What an observer can find out: audits of ε, and images from updates."""
