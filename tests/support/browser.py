"""Inspects pages in a headless Chromium, if one is installed."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
NO_CHROMIUM = f"needs Chromium: none of {', '.join(NAMES)} is on the path"

# Runs in the loaded page and writes its measurements to an attribute of the document.
_PROBE = """<script>window.addEventListener("load", () => {
const root = document.documentElement, facts = {};
facts.width = root.clientWidth;
facts.scrolls = root.scrollWidth;
facts.images = [...document.images].map(i =>
  [i.complete && i.naturalWidth > 0, i.getBoundingClientRect().width, i.alt]);
facts.anchors = [...document.querySelectorAll("a[href^='#']")].map(a => {
  a.click();
  const target = document.querySelector(":target");
  const place = target && target.getBoundingClientRect();
  return [a.textContent, Boolean(place && place.top < innerHeight && place.bottom > 0)];
});
const wide = [...document.querySelectorAll("main *, header *, nav *, footer *")].filter(e =>
  e.getBoundingClientRect().right > facts.width + 1 && !e.closest(".scroll"));
facts.wide = wide.map(e => e.outerHTML.slice(0, 120));
document.querySelectorAll("details").forEach(d => { d.open = true; });
const focusable = [...document.querySelectorAll("a[href], summary, [tabindex='0']")];
facts.focus = focusable.map(e => { e.focus(); return document.activeElement === e; });
facts.named = focusable.every(e => (e.getAttribute("aria-label") || e.textContent).trim());
facts.columns = [...document.querySelectorAll(".pictures")].map(e =>
  getComputedStyle(e).gridTemplateColumns.split(" ").length);
facts.ids = [...document.querySelectorAll("[id]")].map(e => e.id);
facts.background = getComputedStyle(document.body).backgroundColor;
facts.ink = getComputedStyle(document.body).color;
parent.postMessage(JSON.stringify(facts), "*");
});</script>"""


# A window has a least width, a frame has none.
_FRAME = """<!doctype html><script>
addEventListener("message", e => { document.documentElement.dataset.facts = e.data; });
</script><iframe src="%s" style="border: 0; width: %dpx; height: %dpx"></iframe>"""


def page_facts(page: Path, width: int, height: int = 800, dark: bool = False) -> dict:
    """Measurements of the page in a window of this size; `console` has the console messages."""
    probed = page.with_name(f"probed_{width}.html")
    frame = page.with_name(f"frame_{width}.html")
    probed.write_text(page.read_text().replace("</body>", _PROBE + "</body>"))
    frame.write_text(_FRAME % (probed.name, width, height))
    try:
        done = _run(
            max(width, 1000),
            height,
            "--dump-dom",
            *(["--blink-settings=preferredColorScheme=0"] * dark),
            frame.as_uri(),
        )
    finally:
        probed.unlink()
        frame.unlink()
    match = re.search(r'data-facts="([^"]*)"', done.stdout)
    assert match, done.stderr
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(match[1])) | {"console": console}


def screenshot(page: Path, out: Path, width: int, height: int) -> None:
    """Writes a screenshot of the page in a window of this size."""
    _run(width, height, f"--screenshot={out}", "--hide-scrollbars", page.resolve().as_uri())


def _run(width, height, *arguments):
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--window-size={width},{height}", "--virtual-time-budget=10000", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
