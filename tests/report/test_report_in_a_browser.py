"""The page as a browser shows it: nothing is empty, and all can be read, in light and in dark."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pipelines.report.run_page import write_report
from pipelines.report.runs_page import write_comparison

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
pytestmark = pytest.mark.skipif(not BROWSER, reason="no Chromium here: apt-get install chromium")

# Blink's names for what a reader's system prefers.
SCHEMES = {"dark": 0, "light": 1}
WIDTHS = (1200, 500)
HEIGHT = 8000
# Of every picture its box, and of every text its colour and the one behind it.
PROBE = """
<script>
const box = (one) => {
  const around = one.getBoundingClientRect();
  return [around.x, around.y, around.right, around.bottom];
};
const seen = (one) => one.getClientRects().length > 0;
const behind = (one) => {
  for (; one; one = one.parentElement) {
    const colour = getComputedStyle(one).backgroundColor;
    if (!/, 0\\)$|transparent/.test(colour)) return colour;
  }
};
const says = (node) => node.nodeType === 3 && node.data.trim();
const texts = [...document.querySelectorAll("main *")].filter(
  (one) => seen(one) && [...one.childNodes].some(says));
document.body.dataset.probe = JSON.stringify({
  wide: document.documentElement.scrollWidth,
  pictures: [...document.querySelectorAll("svg, .path, .track")].filter(seen).map(
    (one) => [one.getAttribute("aria-label") || one.className, box(one)]),
  texts: texts.map((one) => [
    one.textContent.trim().slice(0, 40),
    one instanceof SVGElement ? getComputedStyle(one).fill : getComputedStyle(one).color,
    behind(one)]),
});
</script>
"""


def browse(page: Path, scheme: str, width: int, *options: str, height: int = HEIGHT) -> str:
    """What the browser prints."""
    command = [BROWSER, "--headless=new", "--disable-gpu", "--hide-scrollbars", "--no-sandbox"]
    command += [f"--user-data-dir={page.parent / 'profile'}", f"--window-size={width},{height}"]
    command += [f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", *options, page.as_uri()]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 has it."""
    shares = np.array([int(part) / 255 for part in re.findall(r"\d+", colour)[:3]])
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(colour: str, behind: str) -> float:
    dark, light = sorted(map(luminance, (colour, behind)))
    return (light + 0.05) / (dark + 0.05)


@pytest.fixture(scope="module", params=[(s, w) for s in SCHEMES for w in WIDTHS], ids=str)
def shown(request, tmp_path_factory):
    """A page in a browser: its picture, and what the probe found."""
    from logged_runs import write_run
    from PIL import Image

    scheme, width = request.param
    run = write_run(tmp_path_factory.mktemp("shown"))
    page = write_report(run, run.parent / "prepared")
    picture = run / "page.png"
    probe = probed(page, scheme, width, f"--screenshot={picture}")
    return scheme, width, np.asarray(Image.open(picture).convert("RGB")), probe


def probed(page: Path, scheme: str, width: int, *options: str) -> dict:
    """What the probe finds on a page."""
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    dom = browse(page, scheme, width, "--dump-dom", *options)
    found = re.search(r'data-probe="([^"]*)"', dom)
    assert found, "the probe did not run"
    return json.loads(html.unescape(found[1]))


def test_no_picture_is_empty(shown) -> None:
    _, width, pixels, probe = shown
    assert pixels.shape == (HEIGHT, width, 3)
    assert len(probe["pictures"]) > 15
    for name, (left, top, right, bottom) in probe["pictures"]:
        # With a little of what is around it, since a bar may be all of one colour.
        rows, columns = slice(round(top) - 4, round(bottom) + 4), slice(round(left), round(right))
        region = pixels[rows, columns].reshape(-1, 3)
        assert len(region), name
        colours, counts = np.unique(region, axis=0, return_counts=True)
        background = colours[counts.argmax()].astype(int)
        far = np.abs(region.astype(int) - background).max(axis=1) > 40
        assert far.sum() >= 40, f"{name} is empty"
        assert len(colours) >= 2


def test_all_texts_can_be_read(shown) -> None:
    _, _, _, probe = shown
    assert len(probe["texts"]) > 80
    for text, colour, behind in probe["texts"]:
        # WCAG 2 asks for 4.5.
        assert contrast(colour, behind) >= 4.5, (text, colour, behind)


@pytest.mark.parametrize(("scheme", "width"), [("dark", 500), ("light", 1200)])
def test_five_runs_beside_one_another_can_be_read(run, tmp_path, scheme, width) -> None:
    names = ("a", "b", "c", "d", "a-name-that-says-all-that-was-tried-in-it")
    folders = [shutil.copytree(run, tmp_path / name) for name in names]
    for number, folder in enumerate(folders):
        (folder / "environment.json").write_text(json.dumps({"python": f"3.{number}"}))
    probe = probed(write_comparison(folders, tmp_path / "five.html"), scheme, width)
    assert probe["wide"] <= width
    assert len(probe["texts"]) > 80
    for text, colour, behind in probe["texts"]:
        assert contrast(colour, behind) >= 4.5, (text, colour, behind)


def test_on_a_phone_nothing_is_wider_than_the_screen(run, tmp_path) -> None:
    """In a frame, since no window of the browser is as narrow as a phone."""
    folders = [run, shutil.copytree(run, tmp_path / "a-name-that-says-all-that-was-tried-in-it")]
    pages = [write_report(run, run.parent / "prepared")]
    pages.append(write_comparison(folders, tmp_path / "two.html"))
    frames = "".join(
        f'<iframe src="{page.as_uri()}" width="390" height="844"></iframe>' for page in pages
    )
    measure = """<script>
      onload = () => {
        const pages = [...document.querySelectorAll("iframe")].map((one) => one.contentDocument);
        const widths = pages.map((one) => one.documentElement.scrollWidth);
        document.body.dataset.wide = JSON.stringify(widths);
      };
    </script>"""
    outer = tmp_path / "frames.html"
    outer.write_text(f"<body>{frames}{measure}</body>", encoding="utf-8")
    dom = browse(outer, "light", 1200, "--allow-file-access-from-files", "--dump-dom")
    widths = json.loads(re.search(r'data-wide="([^"]*)"', dom)[1])
    assert len(widths) == len(pages)
    assert max(widths) <= 390


def test_it_is_dark_where_that_is_wished_and_as_wide_as_the_window(shown) -> None:
    scheme, width, pixels, probe = shown
    corner = pixels[3, 3].astype(int)
    assert (corner.max() < 40) if scheme == "dark" else (corner.min() > 240)
    assert probe["wide"] <= width


def test_pointing_at_a_pair_shows_its_texts(run) -> None:
    text = write_report(run, run.parent / "prepared").read_text(encoding="utf-8")
    page = run / "pointed.html"
    point = """<script>
      const pair = document.querySelector('g.pair[data-pair="2"]');
      pair.querySelector("circle").dispatchEvent(new Event("pointerover", {bubbles: true}));
    </script></body>"""
    page.write_text(text.replace("</body>", point), encoding="utf-8")
    dom = browse(page, "light", 1200, "--dump-dom")
    box = dom[dom.index('class="picked"') :]
    places = [box.index(words) for words in ("query 2", "answer 2", "rank 4 before, rank 1 after")]
    assert all(one < other for one, other in pairwise(places))
    # On both maps.
    assert dom.count('class="pair first on"') + dom.count('class="pair near on"') == 2


def test_a_chart_tells_its_values_to_pointer_and_keyboard(run) -> None:
    text = write_report(run, run.parent / "prepared").read_text(encoding="utf-8")
    page = run / "read.html"
    read = """<script>
      const svg = [...document.querySelectorAll('svg[aria-label="Learning rate"]')][0];
      const box = svg.parentElement.querySelector(".values");
      const told = [box.hidden ? "hidden" : "shown"];
      const tell = () => told.push(box.hidden ? "hidden" : box.textContent);
      const press = (key) => {
        svg.dispatchEvent(new KeyboardEvent("keydown", {key, cancelable: true}));
        tell();
      };
      const bounds = svg.getBoundingClientRect();
      const at = {clientX: bounds.right - 1, clientY: bounds.top + 5, pointerType: "mouse"};
      svg.dispatchEvent(new PointerEvent("pointermove", at));
      tell();
      svg.dispatchEvent(new PointerEvent("pointerleave", at));
      tell();
      svg.focus();
      ["Home", "ArrowRight", "End", "ArrowRight", "PageUp", "Escape"].forEach(press);
      told.push(document.activeElement === svg ? "focused" : "lost");
      document.body.dataset.told = JSON.stringify(told);
    </script></body>"""
    page.write_text(text.replace("</body>", read), encoding="utf-8")
    dom = browse(page, "light", 1200, "--dump-dom")
    told = json.loads(html.unescape(re.search(r'data-told="([^"]*)"', dom)[1]))
    # PageUp goes on by a tenth, and there is nothing behind the end.
    steps = ["120", "10", "20", "120", "120", "120"]
    first, *others = [f"step {step}1.00e-5" for step in steps]
    assert told == ["hidden", first, "hidden", *others, "hidden", "focused"]
    # The hint of the browser would lie over the box; without scripts it is there.
    assert "<title>Learning rate. " in text
    assert "<title>Learning rate. " not in dom


def test_what_is_pointed_at_covers_no_heading(run) -> None:
    text = write_report(run, run.parent / "prepared").read_text(encoding="utf-8")
    page = run / "scrolled.html"
    scroll = """<script>
      const box = document.querySelector(".picked");
      const covered = [];
      const look = (headings) => {
        for (let y = 0; y < document.documentElement.scrollHeight; y += 20) {
          window.scrollTo(0, y);
          const picked = box.getBoundingClientRect();
          for (const heading of document.querySelectorAll(headings)) {
            const one = heading.getBoundingClientRect();
            if (one.top < picked.bottom && picked.top < one.bottom)
              covered.push(heading.textContent);
          }
        }
      };
      look("h2, h3, h4");
      document.querySelector("g.pair circle").dispatchEvent(new Event("click", {bubbles: true}));
      look("h2");
      document.body.dataset.covered = JSON.stringify(covered);
    </script></body>"""
    page.write_text(text.replace("</body>", scroll), encoding="utf-8")
    dom = browse(page, "light", 1200, "--dump-dom", height=870)
    assert re.search(r'data-covered="([^"]*)"', dom)[1] == "[]"
