"""What a leader proposes by itself when it is due: delayed and timed messages, checks of transactions."""
