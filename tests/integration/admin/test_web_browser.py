"""The console in a real browser: it shows the death of a leader by itself, and nothing that it shows is carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dledger_mq.blocking import PullConsumer
from jepsen.processes import Group, poll
from tests.integration.admin.test_web_processes import send
from tests.integration.admin.web_console import PATIENCE_S, TOKEN, chromium, web_console
from tests.integration.broker.test_processes import leader_of

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

pytestmark = [pytest.mark.slow, pytest.mark.integration]

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--window-size=1280,900",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[WebDriver]:
    found = chromium()
    if found is None:
        pytest.skip("no browser: Debian's chromium and chromium-driver are not installed")
    if find_spec("selenium") is None:
        pytest.skip("selenium is not installed")
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.chrome.webdriver import WebDriver

    options = Options()
    options.binary_location = found[0]
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = WebDriver(options=options, service=Service(found[1]))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with Group(tmp_path_factory.mktemp("browser")) as running:
        running.start()
        running.wait_listening()
        send(running)
        yield running


@pytest.fixture(scope="module")
def place(group: Group, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("console")
    with web_console(folder, group.namesrv, "--changes") as address:
        yield address


def text_of(browser: WebDriver) -> str:
    """Return the text of the page that is shown; a page that is being replaced has none."""
    text = browser.execute_script("return document.body ? document.body.innerText : ''")  # type: ignore[no-untyped-call]
    assert isinstance(text, str)
    return text


def wait_to_read(browser: WebDriver, is_said: Callable[[str], bool]) -> str:
    """Return the text in which it was found: the page may be replaced a moment later."""
    text = ""

    def is_there() -> bool:
        nonlocal text
        text = text_of(browser)
        return is_said(text)

    assert poll(is_there, PATIENCE_S, 0.1), text
    return text


def hold_still(browser: WebDriver) -> None:
    """Keep what is shown until another page is opened: what was found for a click may be replaced before it."""
    browser.execute_script(  # type: ignore[no-untyped-call]
        "document.getElementById('live').replaceWith = () => {}"
    )


def complaints(browser: WebDriver) -> list[object]:
    """Return what the browser says against a page: what its policy has blocked, and errors of scripts."""
    said = browser.get_log("browser")  # type: ignore[no-untyped-call]
    return [
        each
        for each in said
        if each["level"] == "SEVERE" and "responded with a status of 40" not in each["message"]
    ]


def test_the_death_of_a_leader_is_shown_without_a_reload(
    browser: WebDriver, group: Group, place: str
) -> None:
    browser.get(place)
    wait_to_read(browser, lambda text: "nothing is to be looked into" in text)
    browser.execute_script("window.isTheSamePage = true")  # type: ignore[no-untyped-call]
    leader = leader_of(group)
    leader.kill()
    text = wait_to_read(browser, lambda text: f"{leader.name} (away)" in text)
    assert (
        "nothing is to be looked into" not in text
    )  # before the election it says that there is no leader
    others = [node.name for node in group.nodes if node is not leader]
    wait_to_read(browser, lambda text: any(f"{name} leads in term" in text for name in others))
    wait_to_read(browser, lambda text: "something is to be looked into" in text)
    assert len(browser.find_elements("css selector", "svg.strip rect")) >= 2
    assert browser.execute_script("return window.isTheSamePage")  # type: ignore[no-untyped-call]
    leader.start()
    wait_to_read(browser, lambda text: "nothing is to be looked into" in text)
    assert complaints(browser) == []


@pytest.mark.parametrize("path", ["/", "/topics", "/topic?name=Orders", "/groups", "/absent"])
def test_no_page_breaks_its_own_policy(browser: WebDriver, place: str, path: str) -> None:
    complaints(browser)
    browser.get(place + path)
    wait_to_read(browser, lambda text: "As of" in text)
    assert complaints(browser) == []


def test_links_of_headings_sort_and_the_keyboard_reaches_them(
    browser: WebDriver, place: str
) -> None:
    browser.get(f"{place}/topics?system=1")
    wait_to_read(browser, lambda text: "Orders" in text and "TBW102" in text)
    hold_still(browser)
    heading = browser.find_element("link text", "Messages kept")
    browser.execute_script("arguments[0].focus()", heading)  # type: ignore[no-untyped-call]
    heading.send_keys("\ue007")  # Enter
    assert poll(lambda: "topics-sort=-messages" in browser.current_url, PATIENCE_S)
    wait_to_read(browser, lambda text: "Orders" in text)
    hold_still(browser)
    (column,) = browser.find_elements("css selector", "th[aria-sort=descending]")
    assert column.text.startswith("Messages kept")


SLOWLY = """
const real = window.fetch;
window.answered = 0;
window.fetch = async (...given) => {
  window.underTheHand = document.querySelector("#live a");
  window.underTheHand.focus();
  const answer = await real(...given);
  return {
    text: async () => {
      const text = await answer.text();
      setTimeout(() => { window.answered += 1; }); // when the page has done with it
      return text;
    },
  };
};
"""
"""Somebody sets the focus after the console has asked, and before it has its answer."""


def test_what_somebody_begins_while_an_answer_is_under_way_stays_under_the_hand(
    browser: WebDriver, place: str
) -> None:
    browser.get(f"{place}/topics?system=1")
    wait_to_read(browser, lambda text: "Orders" in text and "TBW102" in text)
    browser.execute_script(SLOWLY)  # type: ignore[no-untyped-call]
    is_answered = "return window.answered > 0"
    assert poll(lambda: browser.execute_script(is_answered), PATIENCE_S)  # type: ignore[no-untyped-call]
    is_there = "return document.activeElement === window.underTheHand"
    assert browser.execute_script(is_there)  # type: ignore[no-untyped-call]


def test_a_change_is_made_by_hand(browser: WebDriver, group: Group, place: str) -> None:
    with PullConsumer(group.namesrv, "by-hand", timeout_s=PATIENCE_S) as consumer:
        for queue in consumer.queues("Orders"):
            consumer.commit(queue, 1)
    browser.get(f"{place}/sign-in")
    browser.find_element("name", "token").send_keys(TOKEN + "x\ue007")
    wait_to_read(browser, lambda text: "That is not the token." in text)
    browser.find_element("name", "token").send_keys(TOKEN + "\ue007")
    wait_to_read(browser, lambda text: "Changes allowed" in text)

    def is_known() -> bool:
        browser.get(f"{place}/group?name=by-hand")
        return "Orders" in text_of(browser)

    assert poll(is_known, PATIENCE_S)
    hold_still(browser)
    browser.find_element("css selector", "summary").click()
    browser.find_element("css selector", "input[value=last]").click()
    browser.find_element("css selector", "details button").click()
    wait_to_read(browser, lambda text: "Nothing is changed yet." in text)
    browser.find_element("css selector", "main form button").click()
    wait_to_read(browser, lambda text: "The offsets of by-hand in Orders are reset." in text)
    with PullConsumer(group.namesrv, "by-hand", timeout_s=PATIENCE_S) as consumer:
        queues = consumer.queues("Orders")
        places = [(consumer.committed(queue), consumer.max_offset(queue)) for queue in queues]
    assert len(places) > 1
    assert all(committed == end for committed, end in places)
    assert complaints(browser) == []
