"""The archive: expired log as Parquet by topic and date, listed in manifests that retention may go by.

manifests   what an archive holds, and what may be deleted because of it; knows no Spark
rows        the archive's columns and its totals per queue, from data frames to data frames
writing     one stretch of the log into the archive, so that nothing half-written is taken for whole
"""
