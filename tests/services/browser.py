"""A person's browser: Debian's Chromium without a window, with a new and empty profile."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Pictures of what was seen, for a person and for CI to keep; not committed.
SCREENSHOTS = Path(os.environ.get("LONGROW_SCREENSHOTS", "ci-output/screenshots")).resolve()


@contextmanager
def browser_page(profile: Path) -> Iterator[tuple[Page, list[str]]]:
    """A page, and the addresses it has asked for beyond this machine."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "There is no Chromium. Install it: apt-get install chromium"
    outside: list[str] = []
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=chromium,
            headless=True,
            args=FLAGS,
            viewport={"width": 1280, "height": 1000},
        )
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.on(
            "request",
            lambda request: (
                outside.append(request.url)
                if request.url.startswith("http") and "//127.0.0.1:" not in request.url
                else None
            ),
        )
        yield page, outside
        context.close()


STILL = """() => ![...document.querySelectorAll('[class*="spin-spinning"]')].some(one => {
    const box = one.getBoundingClientRect();
    return box.height && box.bottom > 0 && box.top < innerHeight;
})"""


def keep(page: Page, name: str) -> None:
    """Keep a picture of the page as it is when nothing in sight is still being loaded."""
    page.mouse.move(2, 2)  # a chart that is pointed at puts its tools over its curve
    page.wait_for_function(STILL)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", animations="disabled")
