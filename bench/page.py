"""The page of a job with 256 nodes of 8 workers, in a browser: how long its frames take.

The job is made up: at each look some workers end, others run again, and something has happened. The
page is scrolled all the while.
"""

from __future__ import annotations

import random
import statistics
from typing import Any

from bench.table import number, render
from holdfast.net.address import Address
from holdfast.page.server import PageServer
from holdfast.page.source import JobNews
from tests.browser import CHROMIUM, chromium

__all__ = ["page"]

NODES, WORKERS = 256, 8
CHANGES = 40
"""So many workers change between two looks, of which there are two a second."""
FRAMES = """\
new Promise((done) => {
  const times = [];
  let last = performance.now(), way = 12;
  function step(now) {
    times.push(now - last);
    last = now;
    const most = document.documentElement.scrollHeight - innerHeight;
    if (scrollY >= most || scrollY <= 0) way = scrollY <= 0 ? 12 : -12;
    scrollBy(0, way);
    if (times.length > COUNT) done(times.slice(1)); else requestAnimationFrame(step);
  }
  requestAnimationFrame(step);
})
"""


class MadeUpJob:
    """A job of many nodes that nothing runs."""

    def __init__(self, nodes: int, workers: int) -> None:
        self._rng = random.Random(1)
        self._events: list[dict[str, Any]] = []
        self._agents = [
            {
                "run": "large",
                "name": "train.py",
                "host": f"node{node:03}",
                "pid": 1000 + node,
                "started_at": 0.0,
                "state": "running",
                "reason": f"node {node} of {nodes} in round 3",
                "round": 3,
                "node": node,
                "nodes": nodes,
                "world_size": nodes * workers,
                "workers": [
                    {"rank": node * workers + one, "role": "trainer", "pid": 1, "running": True}
                    for one in range(workers)
                ],
            }
            for node in range(nodes)
        ]

    def poll(self) -> JobNews:
        agents: list[dict[str, Any]] = list(self._agents)
        for number_ in self._rng.sample(range(len(agents)), CHANGES):
            agent = agents[number_]
            workers = [dict(one) for one in agent["workers"]]
            one = self._rng.choice(workers)
            one["running"] = not one["running"]
            agents[number_] = {**agent, "workers": workers}
        self._agents = agents
        count = len(self._events) + 1
        self._events.append(
            {"number": count, "time": float(count), "event": "WorkerFailed", "text": "a mistake"}
        )
        return JobNews(agents, [], self._events[-600:])

    def stacks(self, ranks: tuple[int, ...] | None) -> tuple[list[dict[str, Any]], list[str]]:
        return [], []


def page(frames: int) -> tuple[str, object]:
    """Measure so many frames."""
    if CHROMIUM is None:
        return "the page: needs Debian's package chromium", {}
    server = PageServer(Address("127.0.0.1", 0), MadeUpJob(NODES, WORKERS))
    link = server.start()
    try:
        with chromium() as browser:
            browser.open(link)
            browser.wait_for(f"document.querySelectorAll('.cell').length == {NODES * WORKERS}")
            times = sorted(browser.run(FRAMES.replace("COUNT", str(frames))))
            events = browser.run("document.querySelectorAll('#events li').length")
    finally:
        server.close()
    figures = {
        "median": statistics.median(times),
        "95 of 100": times[len(times) * 95 // 100],
        "99 of 100": times[len(times) * 99 // 100],
        "at most": times[-1],
    }
    title = f"the page, {NODES} x {WORKERS} workers: ms between frames ({events} changes seen)"
    text = render(title, ["", *figures], [["holdfast", *map(number, figures.values())]])
    return text, figures
