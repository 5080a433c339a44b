"""`dledger-admin web`: a console in the browser. What it shows it gets by the questions of broker/admin."""
