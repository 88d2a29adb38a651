"""How fast the viewer is with 10,000 nodes: until the first view, until all is unfolded, and each frame of panning.

    python benchmarks/viewer_frames.py [--chromium /usr/bin/chromium] [--nodes 10000]

Needs playwright (pip install playwright) and Chromium.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from playwright.sync_api import Page, sync_playwright
from torch import nn

import fxplug
from fxplug_viz import view

_PAN = """
async () => {
  const { picture } = fxplugView.app;
  picture.frames.length = 0;
  const gaps = [];
  let last = performance.now();
  for (let at = 0; at < 90; at += 1) {
    picture.zoom.translateBy(vendor.select(picture.canvas), 3, at < 45 ? -12 : 9);
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    gaps.push(now - last);
    last = now;
  }
  return { gaps, paints: picture.frames.map(([, took]) => took), drawn: picture.drawn };
}
"""


class Block(nn.Module):
    """A few layers with a shortcut; blocks with another `kind` have another shape."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.first, self.second, self.kind = nn.Linear(4, 4), nn.Linear(4, 4), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the layers make of `x`, added to it."""
        y = self.second(self.first(x).relu())
        for _ in range(4 + self.kind):
            y = y.sin() + x
        return x + y


def blocks(nodes: int) -> fxplug.GraphModule:
    """Return a deep module with about as many nodes, in stages of 20 blocks."""
    stages = [nn.Sequential(*(Block(at % 3) for at in range(20))) for _ in range(max(1, nodes // 278))]
    return fxplug.symbolic_trace(nn.Sequential(*stages))


def flat(nodes: int) -> fxplug.Graph:
    """Return one long function without modules."""
    graph = fxplug.Graph()
    values = [graph.placeholder("x")]
    for at in range(nodes - 2):
        values.append(graph.call_function(torch.add, (values[-1], values[max(0, at - 7)])))
    graph.output(values[-1])
    return graph


def measure(page: Page, path: Path) -> None:
    """Open a page and print what it took."""
    start = time.perf_counter()
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]", timeout=120_000)
    print(f"  first view after {time.perf_counter() - start:.2f} s")
    start = time.perf_counter()
    page.evaluate(
        "async () => { while (!fxplugView.app.prepared) await new Promise((go) => setTimeout(go, 50)); }"
    )
    print(f"  all modules laid out in the background after another {time.perf_counter() - start:.2f} s")
    pan(page, "folded")
    start = time.perf_counter()
    page.evaluate("fxplugView.app.setAll(true)")
    print(f"  everything unfolded in {time.perf_counter() - start:.2f} s")
    pan(page, "unfolded, readable")
    page.evaluate("fxplugView.app.picture.fitAll()")
    pan(page, "unfolded, all in sight")


def pan(page: Page, what: str) -> None:
    """Pan for 90 frames and print how long they took."""
    result = page.evaluate(_PAN)
    gaps, paints = sorted(result["gaps"]), sorted(result["paints"])
    print(
        f"  panning, {what}: {result['drawn']} boxes in sight; a frame every {statistics.median(gaps):.1f} ms "
        f"(95 %: {gaps[int(0.95 * len(gaps))]:.1f}, longest {gaps[-1]:.1f}), painting "
        f"{statistics.median(paints):.1f} ms (longest {paints[-1]:.1f})"
    )


def main() -> None:
    """Measure both kinds of graphs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--nodes", type=int, default=10_000)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=wanted.chromium, args=["--no-sandbox"])
        for name, made in (("modules", blocks(wanted.nodes)), ("one function", flat(wanted.nodes))):
            graph = made if isinstance(made, fxplug.Graph) else made.graph
            start = time.perf_counter()
            path = view(made, Path(folder) / "graph.html")
            print(
                f"{name}: {len(graph.nodes)} nodes, written in {time.perf_counter() - start:.2f} s,", end=" "
            )
            print(f"{path.stat().st_size / 1e6:.1f} MB")
            measure(browser.new_page(viewport={"width": 1400, "height": 900}), path)
        browser.close()


if __name__ == "__main__":
    main()
