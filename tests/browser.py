"""A headless Chromium for tests that look at pages: what its console said, what overflows, and pictures."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A driver for `look`. Who runs these tests asked for a browser, so its lack is a failure."""
    found = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if not all(found.values()):
        pytest.fail("Browser tests need Chromium and its driver: apt-get install chromium chromium-driver.")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = found["chromium"]
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(found["chromedriver"]))
    try:
        yield driver
    finally:
        driver.quit()


def look(driver: Any, page: Path, width: int, *, dark: bool = False, picture: Path | None = None) -> list[str]:
    """Open a page offline at a width, and give what the console said; a picture of the whole page if asked."""
    driver.execute_cdp_cmd("Network.enable", {})
    driver.execute_cdp_cmd(
        "Network.emulateNetworkConditions",
        {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1},
    )
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get(page.as_uri())
    if picture is not None:
        import base64

        shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "format": "png"})
        picture.write_bytes(base64.b64decode(shot["data"]))
    return [f"{entry['level']}: {entry['message']}" for entry in driver.get_log("browser")]
