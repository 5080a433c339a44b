"""An archive as a Delta table: a log beside the manifests that lists the same files, for whatever reads such tables.

The manifests stay the truth, since retention goes by them; the table follows them (adr/0281).

delta       the table's log, through deltalake: versions, and commits that one of several runs gets
statistics  what a file's entry in that log says of its rows
following   the table is brought as far as the manifests
compacting  small files of a topic and day become larger ones; the rows stay what they are
vacuuming   files that no version that is kept reads are removed, and none that a manifest lists
reading     one version of the table, and the offsets at which what brokers have goes on
"""
