"""A reader sorts, searches and copies in a browser, and opens trials."""

from typing import Any

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.support.browser import needs_browser, resize, wait, wait_for_trial

pytestmark = needs_browser
TABLE = "[...document.querySelectorAll('.table')].find(t => t.innerText.includes('Every gap'))"


def test_a_click_on_a_header_sorts_and_another_turns_it_round(browser: Any) -> None:
    values = (
        f"return {TABLE}.dataTable.rows({{order: 'applied'}}).data().toArray()"
        ".map(row => Array.isArray(row[arguments[0]]) ? row[arguments[0]][1] : row[arguments[0]])"
    )
    names = browser.execute_script(f"return {TABLE}.heads.map(head => head.title)")
    for name in ("gap", "arm", "gap removed"):
        column = names.index(name)
        click = (
            f"const done = arguments[0], table = {TABLE};"
            "table.dataTable.one('draw', () => setTimeout(done));"
            f"table.querySelectorAll('th')[{column}].click()"
        )
        browser.execute_async_script(click)
        up = browser.execute_script(values, column)
        known = [value for value in up if value is not None]
        assert known == sorted(known)
        assert up == known + [None] * (len(up) - len(known)), "what is missing comes last"
        browser.execute_async_script(click)
        down = [value for value in browser.execute_script(values, column) if value is not None]
        assert down == sorted(known, reverse=True)


def test_a_table_is_searched_has_pages_and_hides_columns(browser: Any) -> None:
    def shown() -> list[str]:
        script = "return [...document.querySelectorAll('#trials tbody tr')].map(r => r.innerText)"
        return list(browser.execute_script(script))

    assert len(shown()) == 15, "a page"
    search = browser.find_element("css selector", "#trials input[type=search]")
    search.send_keys("muon")
    assert len(shown()) == 4
    assert all("Muon" in row for row in shown())
    search.clear()
    search.send_keys(" ")
    browser.execute_script("document.querySelector('#trials button.buttons-collection').click()")
    column = browser.find_element(
        "xpath", "//button[contains(@class, 'columnVisibility')][contains(., 'status')]"
    )
    browser.execute_script("arguments[0].click()", column)
    assert not any("completed" in row for row in shown())
    browser.execute_script("arguments[0].click()", column)
    browser.execute_script("document.querySelector('.dt-button-background')?.click()")
    # It fades away, and until then it lies over the page and takes what is clicked there.
    cover = ".dt-button-background"
    wait(browser).until_not(lambda page: page.find_elements("css selector", cover))
    assert any("completed" in row for row in shown())


def test_a_button_copies_a_table_as_csv(browser: Any) -> None:
    """What was copied is pasted into a field."""
    field = browser.execute_script(
        "return document.body.appendChild(document.createElement('textarea'))"
    )
    # A real click: a page may write to the clipboard only after a gesture of its reader.
    button = browser.execute_script(f"return {TABLE}.querySelector('[data-copy]')")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    ActionChains(browser).click(button).perform()
    copied = "//button[text()='copied']"
    wait(browser).until(lambda page: page.find_elements("xpath", copied))
    field.send_keys(Keys.CONTROL, "v")
    pasted = wait(browser).until(lambda page: field.get_property("value"))
    lines = pasted.splitlines()
    browser.execute_script("arguments[0].remove()", field)
    names, *rows = [line.split(",") for line in lines]
    column = names.index("gap")
    known = browser.execute_script(
        f"return {TABLE}.dataTable.rows().data().toArray().map(row => row.find("
        f"(cell, at) => {TABLE}.heads[at].title === 'gap')[1])"
    )
    assert sorted(float(row[column]) for row in rows if row[column]) == pytest.approx(
        sorted(value for value in known if value is not None)
    )


def test_the_keyboard_opens_a_trial_and_closes_it(browser: Any) -> None:
    opener = browser.find_element("css selector", "#trials button.trial")
    trial_id = opener.text
    opener.send_keys(Keys.ENTER)
    shown = wait_for_trial(browser)
    assert f"Trial {trial_id}" in shown.text
    for said in ("optimizer.lr", "0.004", "rerun", f"trial_id={trial_id}", "Log", "batch_size"):
        assert said in shown.text
    marks = "return document.querySelectorAll('dialog .mark-symbol path').length"
    assert browser.execute_script(marks) == 100 + 4 + 2  # of 400 updates, all evaluations, legend
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not browser.find_elements("css selector", "dialog[open]")
    assert browser.switch_to.active_element == opener, "where the reader was"


OF_A_SEED = """
return [...document.querySelectorAll('.panel .mark-symbol path')].find(path => {
  if (!path.__data__?.datum?.trial_id) return false;
  path.scrollIntoView({block: 'center'});
  const {x, y, width, height} = path.getBoundingClientRect();
  return document.elementFromPoint(x + width / 2, y + height / 2) === path;
})
"""
"""The first point of a single trial, not of a mean, that nothing lies on."""


def click_a_point(browser: Any) -> str:
    """The id of its trial."""
    point = browser.execute_script(OF_A_SEED)
    trial_id: str = browser.execute_script(
        "arguments[0].scrollIntoView({block: 'center'});"
        "const {x, y, width, height} = arguments[0].getBoundingClientRect();"
        "const top = document.elementFromPoint(x + width / 2, y + height / 2);"
        "return top.__data__.datum.trial_id",  # another point may lie on this one
        point,
    )
    ActionChains(browser).move_to_element(point).click().perform()
    return trial_id


def test_a_click_on_a_point_opens_its_trial(browser: Any) -> None:
    """A click that comes while the page is still laid out anew is made again."""
    resize(browser, 1400)
    clicked: list[str] = []

    def is_open(page: Any) -> Any:
        if not page.find_elements("css selector", "dialog[open]"):
            clicked.append(click_a_point(page))
        return page.find_elements("css selector", "dialog[open][data-drawn]")

    wait(browser).until(is_open)
    assert browser.find_element("id", "trial-title").text == f"Trial {clicked[-1]}"
    browser.execute_script("document.getElementById('trial').close()")
