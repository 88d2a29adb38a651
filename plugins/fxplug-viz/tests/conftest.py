"""A browser for the tests of pages."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """A page in the browser, with what it asked for and complained about."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))

    def open(self, path: Path, fragment: str = "") -> Page:
        self.page.goto(path.as_uri() + fragment)
        self.page.wait_for_selector("html[data-ready]")
        return self

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def app(self, expression: str) -> Any:
        return self.page.evaluate(f"async () => {{ const app = fxplugView.app; return {expression}; }}")

    def wait(self, condition: str) -> None:
        """Wait in the page itself: its policy lets nobody else evaluate text again and again."""
        came = self.page.evaluate(
            f"async () => {{ for (let at = 0; at < 1000; at += 1) {{ if ({condition}) return true; "
            "await new Promise((go) => setTimeout(go, 20)); } return false; }"
        )
        assert came, f"{condition}: not after 20 seconds, at {self.page.url}"

    def visible(self) -> list[str]:
        return self.app("[...app.picture.scene.boxes.keys()].map((id) => app.model.name(id))")

    def rows(self) -> list[str]:
        return self.page.locator("#tree .row .label").all_inner_texts()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("Chromium is not installed, and CI must not go without: apt-get install chromium")
        pytest.skip("Chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def new_page(browser):
    @contextmanager
    def make(**options):
        page = browser.new_page(viewport={"width": 1300, "height": 850}, **options)
        page.set_default_timeout(60_000)
        try:
            yield Page(page)
        finally:
            page.close()

    return make


@pytest.fixture
def page(new_page):
    with new_page() as made:
        yield made
        assert made.complaints == []
        assert all(url.startswith(("file:", "blob:null/", "data:")) for url in made.requests)
