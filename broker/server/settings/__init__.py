"""What a broker.conf may say: every key with what becomes of it, values, their mistakes, and what is left out."""
