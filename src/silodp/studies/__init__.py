"""Studies: each runs what one table or figure needs and writes it as csv, Markdown and pictures."""
