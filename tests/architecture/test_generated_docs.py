"""Pages that are made from the code are current. Rewrite them with `make docs`."""

from __future__ import annotations

import os

from tests.architecture.admin_page import admin_page
from tests.architecture.broker_conf_page import broker_conf_page
from tests.architecture.generated_docs import (
    ADMIN,
    BROKER_CONF,
    ERRORS,
    FAULTS,
    REQUEST_PAGE,
    errors_page,
    faults_page,
)
from tests.architecture.requests_page import requests_page


def test_the_page_of_errors_is_current() -> None:
    if os.environ.get("REWRITE"):
        ERRORS.write_text(errors_page())
    assert ERRORS.read_text() == errors_page()


def test_the_page_of_faults_is_current() -> None:
    if os.environ.get("REWRITE"):
        FAULTS.write_text(faults_page())
    assert FAULTS.read_text() == faults_page()


def test_the_page_of_requests_is_current() -> None:
    if os.environ.get("REWRITE"):
        REQUEST_PAGE.write_text(requests_page())
    assert REQUEST_PAGE.read_text() == requests_page()


def test_the_page_of_broker_conf_is_current() -> None:
    if os.environ.get("REWRITE"):
        BROKER_CONF.write_text(broker_conf_page())
    assert BROKER_CONF.read_text() == broker_conf_page()


def test_the_page_of_dledger_admin_is_current() -> None:
    if os.environ.get("REWRITE"):
        ADMIN.write_text(admin_page())
    assert ADMIN.read_text() == admin_page()
