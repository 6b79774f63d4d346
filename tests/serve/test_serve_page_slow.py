"""The page in a real browser: chat, colours, figures, the comparison, keyboard, dark and light; nothing from elsewhere.

Headless Chromium with its driver (Debian: chromium, chromium-driver) and selenium. Screenshots go where
OUTRIDER_SCREENSHOTS names a folder.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import outrider
from outrider.serve.server import Server, serving
from outrider.serve.service import Limits

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

pytestmark = pytest.mark.slow
PROMPT = "Repeat this, and nothing else: one two three four five six seven one two three four five six seven"


@pytest.fixture(scope="module")
def page_server(demo_folder: Path) -> Iterator[Server]:
    """The demo model: its words can be read on the screenshots."""
    llm = outrider.load("demo", "suffix:global=0", policy="fixed:4", prefix_memory=0)
    with serving([llm, llm.using(drafter="lookup")], "demo", limits=Limits(max_tokens=512)) as running:
        yield running


def browser(dark: bool, width: int = 1280) -> Any:
    """Headless Chromium."""
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.fail("The page's test needs Chromium: apt-get install chromium chromium-driver.")
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={width},1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    return driver


@pytest.fixture(params=[False, True], ids=["light", "dark"])
def page(request: pytest.FixtureRequest, page_server: Server) -> Iterator[Any]:
    """The page, once it knows which model is served."""
    driver = browser(request.param)
    driver.get(page_server.url)
    wait(driver, lambda: "demo" in text(driver, "model"))
    yield driver
    driver.quit()


def wait(driver: Any, holds: Any, seconds: float = 120) -> None:
    """Until it holds."""
    WebDriverWait(driver, seconds).until(lambda _: holds())


def text(driver: Any, ident: str) -> str:
    """What an element says."""
    return str(driver.find_element(By.ID, ident).text)


def shoot(driver: Any, name: str, request: pytest.FixtureRequest) -> None:
    """A screenshot, where they are wanted."""
    folder = os.environ.get("OUTRIDER_SCREENSHOTS")
    if folder:
        scheme = request.node.callspec.params.get("page")
        Path(folder).mkdir(parents=True, exist_ok=True)
        driver.save_screenshot(str(Path(folder) / f"{name}-{'dark' if scheme else 'light'}.png"))


def say(driver: Any, words: str, answers: int = 1) -> None:
    """Type a message, send it with Enter, and wait for the answers to it."""
    box = driver.find_element(By.ID, "message")
    before = len(driver.find_elements(By.CSS_SELECTOR, ".answers article"))
    box.send_keys(words, Keys.ENTER)
    wait(driver, lambda: len(driver.find_elements(By.CSS_SELECTOR, ".answers article")) == before + answers)
    wait(driver, lambda: driver.find_element(By.ID, "send").is_enabled())
    assert text(driver, "alert") == ""


def contrast(driver: Any, selector: str) -> float:
    """WCAG's contrast of an element's text with what lies behind it."""
    script = """
      const element = document.querySelector(arguments[0]);
      let behind = element;
      while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
      return [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor];
    """
    levels = []
    for colour in driver.execute_script(script, selector):
        channels = [int(number) / 255 for number in re.findall(r"\d+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        levels.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(levels) + 0.05) / (min(levels) + 0.05)


def test_a_chat_in_colours(page: Any, request: pytest.FixtureRequest, page_server: Server) -> None:
    """Tokens carry their origins and join to what the library writes; figures live; the switch takes colours away."""
    page.find_element(By.ID, "max-tokens").clear()
    page.find_element(By.ID, "max-tokens").send_keys("48")
    say(page, PROMPT)
    answer = page.find_element(By.CSS_SELECTOR, ".answers .text")
    spans = answer.find_elements(By.TAG_NAME, "span")
    origins = {span.get_attribute("class") for span in spans}
    assert {"accepted"} < origins <= {"accepted", "corrected", "bonus", "plain"}
    written = page.execute_script("return arguments[0].textContent", answer)
    llm = page_server.service.wait().llm
    assert written == llm.generate([{"role": "user", "content": PROMPT}], max_new_tokens=48).text
    assert float(text(page, "figure-length")) > 1 and float(text(page, "figure-speed")) > 0
    assert int(text(page, "figure-tokens")) <= 48
    shoot(page, "chat", request)

    coloured = page.execute_script("return getComputedStyle(arguments[0]).backgroundColor", spans[-2])
    page.find_element(By.ID, "colours").click()
    plain = page.execute_script("return getComputedStyle(arguments[0]).backgroundColor", spans[-2])
    assert plain == "rgba(0, 0, 0, 0)" and coloured != plain
    page.find_element(By.ID, "colours").click()

    answer.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert text(page, "round").startswith("Round 2.")
    assert len(page.find_elements(By.CSS_SELECTOR, ".here")) >= 1
    say(page, "And once more.")
    assert len(page.find_elements(By.CSS_SELECTOR, ".answers")) == 2


def test_side_by_side(page: Any, request: pytest.FixtureRequest) -> None:
    """The same answer with speculation off, without a single drafted token, and the verdict."""
    page.find_element(By.ID, "max-tokens").clear()
    page.find_element(By.ID, "max-tokens").send_keys("32")
    page.find_element(By.ID, "compare").click()
    say(page, PROMPT, answers=2)
    fast, slow = page.find_elements(By.CSS_SELECTOR, ".answers .text")
    assert {span.get_attribute("class") for span in slow.find_elements(By.TAG_NAME, "span")} == {"plain"}
    texts = [page.execute_script("return arguments[0].textContent", element) for element in (fast, slow)]
    assert texts[0] == texts[1]
    verdict = page.find_element(By.CSS_SELECTOR, ".verdict").text
    assert "The same text" in verdict and "times as fast" in verdict
    shoot(page, "compare", request)


def test_it_can_be_read(page: Any, request: pytest.FixtureRequest, page_server: Server) -> None:
    """Contrast of 4.5 or more, origins not by colour alone, names for everything, and the keyboard is enough."""
    say(page, "Say hello.")
    for selector in ("h1", "h3", ".hint", "#model", ".legend .accepted", ".legend .corrected", ".legend .bonus"):
        assert contrast(page, selector) >= 4.5, selector
    assert contrast(page, 'button[type="submit"]') >= 4.5
    lines = {
        page.execute_script(
            "return getComputedStyle(document.querySelector(arguments[0])).textDecorationStyle", f".legend .{kind}"
        )
        for kind in ("accepted", "corrected", "bonus")
    }
    assert len(lines) == 3
    for tree in page.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]:
        role = tree.get("role", {}).get("value")
        if role in {"button", "textbox", "checkbox", "combobox", "spinbutton", "group", "log"} and not tree.get(
            "ignored"
        ):
            assert tree.get("name", {}).get("value"), f"a {role} without a name"
    page.find_element(By.TAG_NAME, "body").click()
    reached = set()
    for _ in range(20):
        page.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(
            page.switch_to.active_element.get_attribute("id") or page.switch_to.active_element.get_attribute("class")
        )
    assert {
        "message",
        "send",
        "clear",
        "colours",
        "compare",
        "drafter",
        "policy",
        "temperature",
        "seed",
        "text",
    } <= reached
    page.set_window_size(420, 900)
    assert page.execute_script("return document.documentElement.scrollWidth <= window.innerWidth"), "it fits a phone"
    shoot(page, "phone", request)


def test_nothing_comes_from_elsewhere_and_nothing_is_wrong(page: Any, page_server: Server) -> None:
    """Every request goes to this server; the console is silent."""
    say(page, "Say hello.")
    events = [entry["message"] for entry in page.get_log("performance")]
    urls = re.findall(r'"Network\.requestWillBeSent".*?"url":"([^"]+)"', "\n".join(events))
    assert urls and all(url.startswith((page_server.url, "data:")) for url in urls)
    assert page.get_log("browser") == []


def test_errors_are_told(page: Any) -> None:
    """What the server refuses is read out, and the message stays to be mended; Escape stops an answer."""
    page.find_element(By.ID, "policy").send_keys("fixed:0")
    page.find_element(By.ID, "message").send_keys("Hello", Keys.ENTER)
    wait(page, lambda: "K of 1 or more" in text(page, "alert"))
    assert page.find_element(By.ID, "message").get_attribute("value") == "Hello"
    page.find_element(By.ID, "policy").clear()
    page.find_element(By.ID, "message").clear()
    page.find_element(By.ID, "message").send_keys("Count from one to five hundred, in words.", Keys.ENTER)
    wait(page, lambda: page.find_elements(By.CSS_SELECTOR, ".answers:last-child .text span"))
    page.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
    wait(page, lambda: text(page, "alert") == "Stopped.")
