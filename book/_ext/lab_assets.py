"""What the lab page runs: Python for the browser (Pyodide), and the package's own files in one archive.

Pyodide comes from npm at build time, where npm is there and reaches its registry, and is kept in the
environment for the next build. Else the page loads the same files, on a click, from a public network of
copies. Either way the page checks each file against the hash given here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from sphinx.util import logging

PAGE = "book/lab"
VERSION = "314.0.7"
CDN = f"https://cdn.jsdelivr.net/npm/pyodide@{VERSION}/"
HASHES = {
    "pyodide.mjs": "Lp79fMwxa4n2BLtugpUAoQMlbxIdg8iCUiP1r3h7nJLkQjwlXT1JzZTeHVL+f4Dg",
    "pyodide.asm.mjs": "/2281iaC0Iimw0B3Kagy1DBfZcJG3W4KYW+EmOqhsdY3fR9BJ88FE2Zt6y0KQKpa",
    "pyodide.asm.wasm": "y++qrQ72KPA1fTjLIuGMP+jppgGxjbLCgfdb0zMrnNnQVhxRUXTOTF6rTxNzllSu",
    "python_stdlib.zip": "xW3A5jmenkrPXbsgrIaB1FCJh9OuLT7FRMagsJMgtlhVc19k/mSy3+7nMaF/d767",
    "pyodide-lock.json": "o8SQQvpVlZnOl04+3dFTJipKxul9GbViVusA379wlOrfHSgxbzt0yPiqCTxOiYES",
}
SIZES = {
    "pyodide.mjs": 17_931,
    "pyodide.asm.mjs": 1_250_344,
    "pyodide.asm.wasm": 9_598_218,
    "python_stdlib.zip": 2_545_637,
    "pyodide-lock.json": 119_077,
}
_LOADED = """
import json, sys
import servelib.sim.lab
print(json.dumps([m.__file__ for name, m in sys.modules.items() if name.split(".")[0] == "servelib"]))
"""
_log = logging.getLogger(__name__)


def whole(folder: Path) -> bool:
    """Whether ``folder`` holds every file of Pyodide that the page needs, unchanged."""
    return all(
        (folder / name).is_file() and sha384((folder / name).read_bytes()) == wanted
        for name, wanted in HASHES.items()
    )


def sha384(content: bytes) -> str:
    """The hash as browsers write it."""
    return base64.b64encode(hashlib.sha384(content).digest()).decode()


def pyodide(kept: Path) -> Path | None:
    """The folder with Pyodide's files, fetched with npm if it must be; None where that cannot be done."""
    if whole(kept):
        return kept
    npm = shutil.which("npm")
    if npm is None:
        return None
    try:
        with tempfile.TemporaryDirectory() as folder:
            pack = [npm, "pack", "--silent", "--fetch-retries=0", f"pyodide@{VERSION}"]
            subprocess.run(pack, cwd=folder, check=True, capture_output=True, timeout=180)
            (archive,) = Path(folder).glob("*.tgz")
            kept.mkdir(parents=True, exist_ok=True)
            with tarfile.open(archive) as tar:
                for name in HASHES:
                    found = tar.extractfile(f"package/{name}")
                    (kept / name).write_bytes(b"" if found is None else found.read())
    except (OSError, subprocess.SubprocessError, tarfile.TarError, KeyError, ValueError) as problem:
        _log.info("lab: Pyodide not fetched with npm (%s); the page will load it from %s", problem, CDN)
        return None
    return kept if whole(kept) else None


def package_files(root: Path) -> list[Path]:
    """The package's files that the lab imports, and the data beside them, by their paths under ``root``."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED], cwd=root, check=True, capture_output=True, text=True
    )
    loaded = [Path(name) for name in json.loads(done.stdout)]
    data = [path for folder in {path.parent for path in loaded} for path in folder.glob("*.json")]
    return sorted(path.relative_to(root) for path in [*loaded, *data])


def write_archive(root: Path, target: Path) -> None:
    """Write the package's files to ``target``, the same bytes for the same files."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in package_files(root):
            archive.writestr(
                zipfile.ZipInfo(path.as_posix()), (root / path).read_bytes(), zipfile.ZIP_DEFLATED
            )


def _prepare(app) -> None:
    app.sl_pyodide = pyodide(Path(sys.prefix) / "share" / f"pyodide-{VERSION}")


def _add_to_page(app, pagename, templatename, context, doctree) -> None:
    if pagename != PAGE:
        return
    from servelib.sim.lab import fields

    about = {
        "version": VERSION,
        "local": app.sl_pyodide is not None,
        "base": "vendor/pyodide/" if app.sl_pyodide is not None else CDN,
        "files": [{"name": n, "bytes": SIZES[n], "integrity": f"sha384-{HASHES[n]}"} for n in HASHES],
        "fields": fields(),
    }
    text = json.dumps(about).replace("</", "<\\/")
    app.add_js_file(None, body=f"window.servingTokensLab = {text};")
    app.add_js_file("lab_figures.js")
    app.add_js_file("lab.js")
    app.add_css_file("lab.css")


def _copy(app, exception) -> None:
    if exception is not None or app.builder.format != "html":
        return
    vendor = Path(app.outdir) / "_static" / "vendor"
    write_archive(Path(app.srcdir), vendor / "servelib.zip")
    for name in HASHES if app.sl_pyodide is not None else ():
        (vendor / "pyodide").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(app.sl_pyodide / name, vendor / "pyodide" / name)


def setup(app) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("builder-inited", _prepare)
    app.connect("html-page-context", _add_to_page)
    app.connect("build-finished", _copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
