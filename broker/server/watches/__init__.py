"""What a node keeps an eye on: its clock and the others', digests, losses, its name, rates."""
