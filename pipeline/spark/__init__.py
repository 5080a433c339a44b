"""Everything that imports pyspark: the session, the formats, and what jobs do with data frames."""
