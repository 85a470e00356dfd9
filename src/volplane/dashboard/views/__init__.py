"""One file per view: what it shows (pure), and how it is rendered."""
