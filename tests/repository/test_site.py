"""The site is built, and each of its pages opened in Chromium, in the width of a phone and of a desktop."""

import functools
import html
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Nothing outside of this machine has a name, so a font or a script from elsewhere is an error in the console.
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"),
    *("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--window-size=1400,1000"),
)
# Opens one page after the other in a frame, and writes what it finds into its own body.
HARNESS = r"""<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
<body><iframe width="1280" height="900"></iframe><script>
const frame = document.querySelector("iframe");
const pause = ms => new Promise(done => setTimeout(done, ms));
async function look(page) {
  const loaded = new Promise(done => frame.onload = done);
  frame.src = page;
  await loaded;
  const shown = frame.contentDocument;
  shown.querySelectorAll("img").forEach(image => image.loading = "eager");
  const wider = {};
  for (const width of [1280, 390]) {
    frame.width = width;
    await pause(200);
    wider[width] = shown.querySelector(".md-main").scrollWidth - width;  // the header is still moving
  }
  const text = shown.querySelector(".md-content").cloneNode(true);
  text.querySelectorAll("code, pre, math").forEach(element => element.remove());
  const quotes = [...shown.querySelectorAll("blockquote")];
  return {
    page, wider,
    title: shown.querySelector("h1")?.textContent ?? "",
    images: [...shown.images].filter(image => !(image.complete && image.naturalWidth)).map(image => image.src),
    raw: text.textContent.match(/\$\$|\\\(|\\(frac|cdot|sqrt)|^:::.*|--8<--/gm) ?? [],
    quoted: quotes.filter(quote => quote.textContent.includes(">>>")).length,
    formulas: shown.querySelectorAll("math").length,
  };
}
(async () => {
  const found = [];
  for (const page of PAGES) found.push(await look(page));
  fetch("/found", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for module in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(module, reason="The site needs the extra `docs`.")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves the site, notes what is missing, and takes the result."""

    def log_message(self, *arguments):
        pass

    def send_error(self, code, *arguments, **keywords):
        self.server.missing.append(f"{code} {self.path}")
        super().send_error(code, *arguments, **keywords)

    def do_POST(self):
        self.server.found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        self.server.done.set()


@pytest.mark.skipif(CHROMIUM is None, reason="There is no Chromium.")
def test_each_page_is_whole_in_a_browser(site, tmp_path):
    pages = ["/", *sorted(f"/{page.parent.name}/" for page in site.glob("*/index.html"))]
    assert len(pages) == len(list((ROOT / "docs").glob("*.md")))
    (site / "harness.html").write_text(HARNESS.replace("PAGES", json.dumps(pages)))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=site))
    server.missing, server.found, server.done = [], [], threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/harness.html"
    with (tmp_path / "log").open("w+") as log:
        browser = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'user'}", "--remote-debugging-port=0", url],
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
        try:
            assert server.done.wait(200), "Chromium did not finish."
        finally:
            browser.terminate()
            browser.wait(30)
            server.shutdown()
        log.seek(0)
        console = [line for line in log if "CONSOLE" in line]
    assert server.missing == []
    assert console == []
    assert [page["page"] for page in server.found] == pages
    for page in server.found:
        assert page["title"], page
        assert page["images"] == page["raw"] == [], page
        assert page["quoted"] == 0, page
        assert max(page["wider"].values()) <= 0, page
    assert [page["formulas"] for page in server.found if page["page"] == "/how-it-works/"] == [1]


def test_nothing_comes_from_elsewhere(site):
    """No page loads a font, a script, a style or a picture from another host."""
    for page in site.rglob("*.html"):
        text = html.unescape(page.read_text())
        assert (
            re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^\" >]+", text) == []
        )
    for style in site.rglob("*.css"):
        assert "@import" not in style.read_text()
