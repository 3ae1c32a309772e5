"""The site is built, and each of its pages opened in Chromium, in the width of a phone and of a laptop."""

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
  shown.querySelectorAll("details").forEach(box => box.open = true);
  const wider = {}, cut = {};
  for (const width of [1280, 390]) {
    frame.width = width;
    await pause(200);
    wider[width] = shown.querySelector(".md-main").scrollWidth - width;  // the header is still moving
    cut[width] = [...shown.querySelectorAll(".md-content pre > code, .md-content .md-typeset__scrollwrap")]
      .filter(element => element.scrollWidth > element.clientWidth + 1)
      .map(element => element.textContent.trim().slice(0, 80));
  }
  const text = shown.querySelector(".md-content").cloneNode(true);
  text.querySelectorAll("code, pre, math").forEach(element => element.remove());
  const quotes = [...shown.querySelectorAll("blockquote")];
  return {
    page, wider, cut,
    title: shown.querySelector("h1")?.textContent ?? "",
    images: [...shown.images].filter(image => !(image.complete && image.naturalWidth)).map(image => image.src),
    raw: text.textContent.match(/\$\$|\\\(|\\(frac|cdot|sqrt)|^:::.*|^(\?\?\?|===|!!!) .*|--8 ?<|\]\(|:material-|```/gm)
      ?? [],
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


def test_the_boxes_of_the_examples_show_their_files(site):
    page = (site / "gallery" / "index.html").read_text()
    boxes = re.findall(r"<details.*?<summary>(.*?)</summary>.*?<code>(.*?)</code>", page, re.DOTALL)
    assert len(boxes) == page.count("<details") >= 7
    for file, code in boxes:
        assert html.unescape(re.sub("<[^>]*>", "", code)).strip() == (ROOT / file).read_text().strip(), file


def test_the_notebook_is_a_page(site):
    page = html.unescape(re.sub("<[^>]*>", "", (site / "tour" / "index.html").read_text()))
    cells = json.loads((ROOT / "examples" / "tour.ipynb").read_text())["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            assert "".join(cell["source"]).strip() in page


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
    pages = sorted(f"/{page.parent.relative_to(site)}/".replace("/./", "/") for page in site.rglob("index.html"))
    assert len(pages) == len(list((ROOT / "docs").rglob("*.md")))
    (site / "harness.html").write_text(HARNESS.replace("PAGES", json.dumps(pages)))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=site))
    server.missing, server.found, server.done = [], [], threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/harness.html"
    with (tmp_path / "log").open("w+") as log:
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'user'}", "--remote-debugging-port=0", url]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        try:
            assert server.done.wait(200), "Chromium did not finish."
        finally:
            browser.terminate()
            browser.wait(30)
            server.shutdown()
            server.server_close()
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
        # On a laptop nothing has to be scrolled sideways; on a phone wide code and tables do, within the page.
        assert page["cut"]["1280"] == [], page
    assert [page["formulas"] for page in server.found if page["page"] == "/how-it-works/"] == [1]


def test_nothing_comes_from_elsewhere(site):
    """No page loads a font, a script, a style or a picture from another host."""
    for page in site.rglob("*.html"):
        text = html.unescape(page.read_text())
        tags = r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^\" >]+"
        assert re.findall(tags, text) == []
    for style in site.rglob("*.css"):
        assert "@import" not in style.read_text()
