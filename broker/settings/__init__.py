"""Files of settings as RocketMQ has them: what a key is, tables of them, and what is wrong with a file."""
