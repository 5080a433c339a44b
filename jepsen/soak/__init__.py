"""A soak: a group that forgets and changes its members, under a steady load and faults, for hours."""
