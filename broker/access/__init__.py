"""Who may do what: accounts and their rights as RocketMQ 4.9 has them in plain_acl.yml, and the check of requests."""
