"""The kinds of stores in which a place outside of this machine may lie: S3, Google Cloud Storage, HDFS.

Each module knows one library and imports it when it is used. None knows what the files mean; `pipeline.object_store`
says what is built on them.
"""
