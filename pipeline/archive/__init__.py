"""The archive: expired log as Parquet by topic and date, listed in manifests that retention may go by.

manifests   what an archive holds, and what may be deleted because of it
parts       part of a stretch of the log as Parquet files, compared with the log: what one task does
writing     one stretch of the log into the archive, so that nothing half-written is taken for whole
history     what an archive holds, to be read before what brokers still have
"""
