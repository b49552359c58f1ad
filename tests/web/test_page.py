"""The page in a real browser. Without one these tests are skipped, in one line."""

import re

import pytest
from web_browser import axe, chromium, missing
from web_server import served

if missing() is not None:
    pytest.skip(missing(), allow_module_level=True)


@pytest.fixture(scope="module")
def running():
    with served() as found:
        yield found


@pytest.fixture(scope="module")
def program():
    with chromium() as found:
        yield found


@pytest.fixture
def open_page(running, program):
    """Opens the page, and knows what it asked for and what went wrong."""
    opened = []

    def call(state="task=field&nodes=20&speed=60", width=1280, height=900, **options):
        context = program.new_context(viewport={"width": width, "height": height}, **options)
        page = context.new_page()
        wrong, asked = [], []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        base = f"http://localhost:{running[0]}/"
        page.goto(f"{base}#{state}")
        page.wait_for_selector("html[data-first]", state="attached")
        page.wait_for_selector('#nodes:has(option:checked:text-is("20"))', state="attached")
        opened.append((context, wrong, asked, base))
        return page

    yield call
    for context, wrong, asked, base in opened:
        context.close()
        assert not wrong
        assert all(url.startswith(base) for url in asked)  # it needs nothing from elsewhere


def verdict(page, side, state):
    page.wait_for_selector(f'[data-side="{side}"] .verdict[data-state="{state}"]')
    return page.inner_text(f'[data-side="{side}"] .verdict')


def said(page, text):
    page.locator("#said", has_text=text).wait_for(state="attached")


def scene(page):
    return int(page.evaluate("document.documentElement.dataset.scene"))


def later(page, version):
    """Wait until the scene is a later one."""
    for _ in range(300):
        if scene(page) > version:
            return
        page.wait_for_timeout(50)
    raise AssertionError("nothing has changed")


def canvas(page, side=0):
    return page.locator(f'[data-side="{side}"] > canvas')


def colours(page, side):
    """How many colours the picture of a side has: an empty one has one."""
    return page.evaluate(
        """(side) => {
          const canvas = document.querySelectorAll('.side > canvas')[side];
          const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
          return new Set(new Uint32Array(data.buffer)).size;
        }""",
        side,
    )


def test_one_sees_which_answer_survives(open_page):
    page = open_page()
    assert "Right." in verdict(page, 0, "right")
    assert "no longer listen" in verdict(page, 1, "wrong")
    assert colours(page, 0) > 20
    assert colours(page, 1) > 5
    assert page.locator("h1").count() == 1
    assert re.match(r"\d", page.inner_text('[data-side="0"] [data-number="packets"]'))
    page.click('[data-preset="caching"]')
    page.wait_for_selector('[data-preset="caching"][aria-pressed="true"]')
    assert "Right." in verdict(page, 1, "right")
    assert "gcn,caching" in page.url


def test_everything_works_by_keyboard(open_page):
    page = open_page("task=field&nodes=20&speed=12")  # slow enough to see it recover
    verdict(page, 0, "right")
    canvas(page).focus()
    page.keyboard.press("Home")
    said(page, "Node 0: says")
    page.keyboard.press("ArrowDown")
    number = re.search(r"Node (\d+)", page.inner_text('[data-side="0"] .about-node')).group(1)
    assert number != "0"
    page.keyboard.press("Enter")
    said(page, f"Node {number} killed.")
    page.locator(".about-node", has_text=f"Node {number} is dead").first.wait_for()
    verdict(page, 0, "wait")
    verdict(page, 0, "right")  # it recovers
    assert verdict(page, 1, "wrong")
    page.keyboard.press("Enter")
    said(page, f"Node {number} revived.")
    page.locator(".about-node", has_text=f"Node {number}: says").first.wait_for()
    before = scene(page)
    page.keyboard.press("Shift+ArrowRight")
    later(page, before)
    # The controls are reached in order, and sliders move by arrows.
    page.locator("#stagger").focus()
    page.keyboard.press("ArrowRight")
    page.locator('output[for="stagger"]', has_text="6 ticks").wait_for()
    page.locator("#pause").focus()
    page.keyboard.press("Space")
    page.locator("#pause", has_text="Go on").wait_for()


def test_a_click_kills_and_a_drag_changes_the_graph(open_page):
    page = open_page()
    box = canvas(page).bounding_box()
    found = None
    for k in range(400):  # a node somewhere in the picture
        x, y = (
            box["x"] + 25 + (k % 20) * (box["width"] - 50) / 20,
            box["y"] + 20 + (k // 20) * (box["height"] - 40) / 20,
        )
        page.mouse.move(x, y)
        if canvas(page).evaluate("(c) => c.style.cursor") == "pointer":
            found = x, y
            break
    assert found
    page.locator(".about-node", has_text=re.compile(r"Node \d+: says")).first.wait_for()
    page.mouse.click(*found)
    said(page, "killed.")
    page.mouse.click(*found)
    said(page, "revived.")
    before = scene(page)
    page.mouse.move(*found)
    page.mouse.down()
    page.mouse.move(found[0] + 60, found[1] + 60, steps=4)
    page.mouse.up()
    later(page, before)
    verdict(page, 0, "right")  # it follows


def test_a_recording_is_replayed(open_page):
    page = open_page()
    verdict(page, 0, "right")
    page.click("#replay")
    page.locator("#banner", has_text="the same bits").wait_for()
    assert page.locator("#stagger").is_disabled()
    page.click("#replay")
    page.locator("#replay", has_text="Replay").wait_for()


@pytest.mark.parametrize("width", [320, 390, 800])
def test_it_fits_a_narrow_window(open_page, width):
    page = open_page(width=width, height=800)
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width
    assert canvas(page).bounding_box()["width"] > 200


def test_motion_is_reduced_where_it_is_asked_for(open_page):
    page = open_page(reduced_motion="reduce")
    assert page.is_checked("#still")
    assert "calm" in page.get_attribute("body", "class")
    verdict(page, 0, "right")
    assert colours(page, 0) > 20  # the answers are there all the same
    page.uncheck("#still")
    assert "calm" not in (page.get_attribute("body", "class") or "")


@pytest.mark.parametrize("state", ["start", "narrow", "killed", "replay", "reduced"])
def test_axe_finds_no_violation(open_page, state):
    source = axe()
    if source is None:
        pytest.skip("axe-core is missing: pip install axe-playwright-python")
    options = {"reduced_motion": "reduce"} if state == "reduced" else {}
    page = open_page(width=390 if state == "narrow" else 1280, **options)
    verdict(page, 0, "right")
    if state == "killed":
        canvas(page).focus()
        page.keyboard.press("Enter")
        said(page, "killed.")
    if state == "replay":
        page.click("#replay")
        page.locator("#banner", has_text="Replay of").wait_for()
    page.evaluate(source)
    found = page.evaluate("async () => (await axe.run(document)).violations")
    assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in found] == []


def test_the_page_says_when_the_server_is_gone(program):
    with served() as (port, _):
        page = program.new_page()
        page.goto(f"http://localhost:{port}/")
        page.wait_for_selector("html[data-first]", state="attached")
    page.locator("#banner", has_text="The server does not answer").wait_for()
    page.close()
