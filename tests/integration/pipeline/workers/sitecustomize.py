"""Lets Spark's Python workers take PySpark from where it is installed, instead of from the archive that comes with it.

It is the same; but nothing in the archive is compiled, so that each start takes three times as long, and Spark waits
for a worker for ten seconds, which a busy machine needs longer than. Found by PYTHONPATH (conftest.py).
"""

import sys

sys.path[:] = [place for place in sys.path if not place.endswith(("pyspark.zip", "-src.zip"))]
