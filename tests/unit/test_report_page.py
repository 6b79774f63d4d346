"""The report in a real browser: no word on the console, nothing wider than the page, at a desk and on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import chromium, look
from measured import everything, hostile

from outrider.measure import report

pytestmark = pytest.mark.slow

OVERFLOWING = """
const inside = element => element.closest('.scroll') || element.closest('nav');
return [...document.querySelectorAll('body *')]
  .filter(e => !inside(e) && !e.closest('.skip') && e.getBoundingClientRect().right > innerWidth + 1)
  .map(e => e.tagName + ' ' + e.className + ' ' + e.textContent.slice(0, 40));
"""
SMALLEST = """
return Math.min(...[...document.querySelectorAll('svg.chart text')].map(text => {
  const drawing = text.closest('svg'), scale = drawing.getBoundingClientRect().width / drawing.viewBox.baseVal.width;
  return parseFloat(getComputedStyle(text).fontSize) * scale;
}));
"""
OUTSIDE = """
return [...document.querySelectorAll('svg.chart text')].filter(text => {
  const own = text.getBoundingClientRect(), whole = text.closest('svg').getBoundingClientRect();
  return own.left < whole.left - 1 || own.right > whole.right + 1 || own.bottom > whole.bottom + 1;
}).map(text => text.closest('svg').querySelector('title').textContent + ': ' + text.textContent);
"""
CONTRAST = """
const parse = colour => colour.match(/[\\d.]+/g).map(Number);
const light = colour => parse(colour).slice(0, 3).map(v => v / 255)
  .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
const behind = e => { while (e) { const c = getComputedStyle(e).backgroundColor;
  if (parse(c)[3] !== 0) return c; e = e.parentElement; } return 'rgb(255, 255, 255)'; };
return [...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && !e.closest('.skip') &&
    [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()))
  .map(e => { const style = getComputedStyle(e);
    const front = light(e.closest('svg') ? style.fill : style.color), back = light(behind(e));
    return [(Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05), e.tagName + '.' + e.className]; })
  .filter(([ratio]) => ratio < 4.5).map(([ratio, name]) => name + ' ' + ratio.toFixed(2));
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with everything in it."""
    folder = tmp_path_factory.mktemp("page")
    results, samples = everything()
    return report.write(results, folder, samples)[0]


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_a_page_for_desks_and_phones(page: Path, width: int, dark: bool) -> None:
    with chromium() as driver:
        assert look(driver, page, width, dark=dark, picture=page.with_name(f"{width}-{dark}.png")) == []
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        assert driver.execute_script(OVERFLOWING) == []
        assert driver.execute_script(SMALLEST) >= 10, "the smallest letters of a chart, in pixels"
        assert driver.execute_script(OUTSIDE) == []
        assert driver.execute_script(CONTRAST) == [], "WCAG AA"
        requests = [entry for entry in driver.get_log("performance") if "Network.requestWillBeSent" in entry["message"]]
        assert all('"url":"file://' in e["message"] or '"url":"data:' in e["message"] for e in requests)


def test_names_that_want_to_break_out_stay_inside(page: Path) -> None:
    odd = report.write(hostile(), page.with_name("hostile"))[0]
    with chromium() as driver:
        assert look(driver, odd, 390) == []
        assert driver.execute_script(OVERFLOWING) == [] and driver.execute_script(OUTSIDE) == []
        assert driver.execute_script("return document.images.length + document.scripts.length") == 0


def test_scripts_that_got_in_would_not_run(page: Path) -> None:
    """The page forbids them itself: the last line of defence, tried."""
    odd = page.with_name("odd.html")
    odd.write_text(page.read_text("utf-8").replace("</body>", "<script>document.title = 'mine'</script></body>"))
    with chromium() as driver:
        said = look(driver, odd, 1280)
        assert driver.title != "mine"
        assert len(said) == 1 and "Content Security Policy" in said[0]


def test_rejected_tokens_can_be_hidden_and_tables_scrolled_by_keyboard(page: Path) -> None:
    with chromium() as driver:
        look(driver, page, 390)
        shown = "return document.querySelector('.trace del').checkVisibility()"
        assert driver.execute_script(shown) is True
        driver.execute_script("document.querySelector('.toggle').click()")
        assert driver.execute_script(shown) is False
        deleted = "[...document.querySelectorAll('.trace')].slice(1).map(trace => trace.querySelector('del'))"
        others = f"return {deleted}.map(element => element.checkVisibility())"
        assert driver.execute_script(others) == [True], "each answer has a switch of its own"
        driver.execute_script("document.querySelector('#headline-caption').closest('.scroll').focus()")
        assert driver.execute_script("return document.activeElement.className") == "scroll"
