"""The one module in C: all else is in pyproject.toml, whose tables for this are experimental.

It is built once for CPython 3.11 and later. Where there is no compiler the package has none, and Python does its work.
"""

from setuptools import Extension, setup

COMPILED = Extension(
    "dledger_mq.message._compiled",
    [
        f"dledger_mq/message/{name}.c"
        for name in (
            "_compiled",
            "_sends",
            "_bursts",
            "_sockets",
            "_fold",
            "_chains",
            "_pulls",
            "_received",
            "_filters",
            "_conditions",
            "_columns",
        )
    ],
    depends=["dledger_mq/message/_compiled.h"],
    py_limited_api=True,
    optional=True,
)

setup(ext_modules=[COMPILED], options={"bdist_wheel": {"py_limited_api": "cp311"}})
