"""The connections of a node to the leader's client port, and what nodes of a group say over them."""
