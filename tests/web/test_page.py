"""The page in a real browser. Without one these tests are skipped, in one line."""

import itertools
import re

import pytest
from agents_by_hand import at_addresses, ports
from web_browser import axe, chromium, missing
from web_server import served

from hogwild.web.show import home

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
        context.set_default_timeout(120_000)  # other tests may need the processor
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
    assert "Nodes begin anew in" in verdict(page, 1, "wrong")
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


@pytest.mark.parametrize("width", [320, 390, 800])
def test_it_fits_a_narrow_window(open_page, width):
    page = open_page(width=width, height=800)
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width
    assert canvas(page).bounding_box()["width"] > 200


@pytest.mark.parametrize("width", [1100, 1280, 1500])
def test_both_graphs_are_at_one_height_whatever_is_said_of_them(open_page, width):
    page = open_page(width=width)

    def tops():
        return page.evaluate(
            "() => [...document.querySelectorAll('.side > canvas')]"
            ".map((e) => e.getBoundingClientRect().top + scrollY)"
        )

    for side, state in ((1, "wrong"), (0, "right")):
        verdict(page, side, state)
        assert len(set(tops())) == 1
    before = tops()
    canvas(page).focus()  # a node is described, in one line or in two
    page.keyboard.press("ArrowRight")
    assert tops() == before


def test_on_a_phone_the_sliders_follow_the_graphs(open_page):
    page = open_page(width=360, height=740)
    places = [page.locator(at).bounding_box()["y"] for at in (".sides", "#panel", ".curves")]
    assert places == sorted(places)


def test_the_chosen_preset_is_told_from_the_others_without_colours(open_page):
    page = open_page(forced_colors="active")
    widths = page.evaluate(
        "() => [...document.querySelectorAll('[data-preset]')]"
        ".map((e) => getComputedStyle(e).borderTopWidth)"
    )
    assert widths == ["3px", "1px", "1px"]


def test_motion_is_reduced_where_it_is_asked_for(open_page):
    page = open_page(reduced_motion="reduce")
    assert page.is_checked("#still")
    assert "calm" in page.get_attribute("body", "class")
    verdict(page, 0, "right")
    assert colours(page, 0) > 20  # the answers are there all the same
    page.uncheck("#still")
    assert "calm" not in (page.get_attribute("body", "class") or "")


def violations(page):
    """What axe finds wrong."""
    source = axe()
    if source is None:
        pytest.skip("axe-core is missing: pip install axe-playwright-python")
    page.evaluate(source)
    found = page.evaluate("async () => (await axe.run(document)).violations")
    return [(v["id"], [n["html"] for n in v["nodes"]]) for v in found]


@pytest.mark.parametrize("state", ["start", "narrow", "killed", "reduced"])
def test_axe_finds_no_violation(open_page, state):
    options = {"reduced_motion": "reduce"} if state == "reduced" else {}
    page = open_page(width=390 if state == "narrow" else 1280, **options)
    verdict(page, 0, "right")
    if state == "killed":
        canvas(page).focus()
        page.keyboard.press("Enter")
        said(page, "killed.")
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []


def corner(page):
    """The colour behind the graph of the first side, and that of the text."""
    return page.evaluate(
        """() => [getComputedStyle(document.querySelector('.side')).backgroundColor,
                  getComputedStyle(document.body).color]"""
    )


def contrast(one, other):
    """The ratio of WCAG between two colours rgb(r, g, b)."""

    def light(colour):
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_page_is_dark_where_the_viewer_wants_it_and_light_on_paper(open_page):
    page = open_page(color_scheme="dark")
    ground, ink = corner(page)
    assert contrast(ground, "rgb(0, 0, 0)") < 2.0 < 7.0 < contrast(ground, ink)
    palette = "async () => (await import('/theme.js')).theme.palette"
    assert min(contrast(ground, c) for c in page.evaluate(palette)) > 2.0  # no answer vanishes
    verdict(page, 0, "right")
    assert colours(page, 0) > 20
    page.emulate_media(media="print", color_scheme="dark")
    ground, ink = corner(page)
    assert contrast(ground, "rgb(255, 255, 255)") == 1.0
    page.wait_for_function(f"async () => (await ({palette})())[0] === 'rgb(0,34,78)'")
    page.emulate_media(media="screen", color_scheme="light")
    assert contrast(corner(page)[0], "rgb(255, 255, 255)") < 1.1


def test_keys_go_through_the_page_in_the_order_in_which_it_is_read(open_page):
    """Also on a narrow window, where everything is in one column."""
    for width in (1280, 390):
        page = open_page(width=width)
        places = []
        page.evaluate("document.activeElement.blur()")
        for _ in range(40):
            page.keyboard.press("Tab")
            found = page.evaluate(
                """() => { const e = document.activeElement; if (e === document.body) return null;
                const b = e.getBoundingClientRect();
                return [e.tagName, e.id, b.left + scrollX, b.top + scrollY]; }"""
            )
            if found is None or found in places:
                break
            places.append(found)
        assert {"stagger", "pause", "still", "task"} <= {place[1] for place in places}
        if width == 390:
            tops = [place[3] for place in places]
            assert all(low <= high + 60 for low, high in itertools.pairwise(tops))


def test_a_finger_drags_a_node_and_scrolls_beside_it(open_page):
    page = open_page(width=390, height=800, has_touch=True, is_mobile=True)
    verdict(page, 0, "right")
    canvas(page).scroll_into_view_if_needed()
    finger = page.context.new_cdp_session(page)

    def drag(x, y, to):
        send = "Input.dispatchTouchEvent"
        finger.send(send, {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
        for k in range(1, 9):
            at = {"x": x, "y": y + (to - y) * k / 8}
            finger.send(send, {"type": "touchMove", "touchPoints": [at]})
            page.wait_for_timeout(30)
        finger.send(send, {"type": "touchEnd", "touchPoints": []})

    def nodes():
        return page.evaluate("async () => (await import('/main.js')).places()")

    box, places = canvas(page).bounding_box(), nodes()
    x, y = min(places, key=lambda at: abs(at[1] - box["height"] / 2))
    scrolled = page.evaluate("scrollY")
    drag(box["x"] + x, box["y"] + y, box["y"] + y + 70)  # up and down is how one scrolls
    for _ in range(100):
        far = [abs(a[1] - b[1]) for a, b in zip(places, nodes(), strict=True)]
        if max(far) > 60:
            break
        page.wait_for_timeout(50)
    assert 60 < max(far) < 80
    assert sorted(far)[-2] < 1  # the others are where they were
    assert page.evaluate("scrollY") == scrolled
    assert page.inner_text("#said") == ""  # nobody was killed
    drag(3, box["y"] + box["height"] / 2, box["y"] - 150)  # beside the graph
    page.wait_for_function(f"() => scrollY > {scrolled}")
    box, (x, y) = canvas(page).bounding_box(), nodes()[-1]
    page.touchscreen.tap(box["x"] + x, box["y"] + y)
    said(page, "killed.")


def test_agents_that_run_elsewhere_are_watched(program, tmp_path):
    """Agents started by hand: their answers, one that is switched off, and no controls."""
    with at_addresses(tmp_path, 3, "udp") as (at, agents), served(home(attach=at[2])) as (port, _):
        page = program.new_page()
        wrong = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"http://localhost:{port}/")
        page.locator("#banner", has_text="A swarm of 3 real processes").wait_for()
        assert "3 of 3 agents say" in verdict(page, 0, "right")
        assert not page.locator("#panel").is_visible()
        assert not page.locator("#presets").is_visible()
        assert not page.locator('[data-side="1"]').is_visible()
        assert not page.locator("#error").is_visible()  # the answer in step is not known
        canvas(page).focus()
        page.locator(".about-node", has_text="Agent 8: says").first.wait_for()
        page.keyboard.press("Enter")  # changes nothing
        assert colours(page, 0) > 5
        assert violations(page) == []
        agents[0].terminate()
        page.locator("#banner", has_text="1 of them cannot be heard").wait_for()
        page.locator(".about-node", has_text="Agent 8 cannot be heard").first.wait_for()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert violations(page) == []
        assert [agent.poll() for agent in agents[1:]] == [None, None]
        page.close()
    assert not wrong


def test_agents_are_watched_by_the_address_of_one(program, tmp_path):
    """Also by a page that is open before the first of them runs."""
    made = ports(1)[0]
    with served(home(attach=f"127.0.0.1:{made}")) as (port, _):
        page = program.new_page()
        page.goto(f"http://localhost:{port}/")
        page.locator("#banner", has_text=f"Nobody answers at 127.0.0.1:{made} yet").wait_for()
        assert violations(page) == []
        with at_addresses(tmp_path, 3, "udp", first=made):
            page.locator("#banner", has_text="A swarm of 3 real processes").wait_for()
            assert "3 of 3 agents say" in verdict(page, 0, "right")
            canvas(page).focus()
            page.locator(".about-node", has_text="Agent 8: says").first.wait_for()
            page.emulate_media(color_scheme="dark")
            assert violations(page) == []
        page.locator("#banner", has_text="It says nothing any more").wait_for()
        page.close()


def test_the_page_says_when_the_server_is_gone(program):
    with served() as (port, _):
        page = program.new_page()
        page.goto(f"http://localhost:{port}/")
        page.wait_for_selector("html[data-first]", state="attached")
    page.locator("#banner", has_text="The server does not answer").wait_for()
    assert page.evaluate("() => document.querySelector('#panel').inert")  # nobody would hear
    page.close()
