"""`dledger-admin`: looks at broker groups from outside, through their clients' port."""
