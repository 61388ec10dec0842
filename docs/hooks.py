"""What the site needs beyond mkdocs.yml.  Documents are written for readers of plain files, and stay so.

README, CHANGELOG and CONTRIBUTING lie beside docs/, where readers of a repository look for them: here they become
pages.  Links to them, and from them into docs/, are rewritten; a link to a file that is no page (a script, a module)
becomes its text, since the site does not hold that file.  A table right behind a comment is one on a git viewer, and
for Python-Markdown only after an empty line.
"""

import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Files beside docs/, and what they are called on the site."""
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)]*)?\)")  # an image's too
_COMMENT = re.compile(r"^(<!--.*-->)\n(?=\|)", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that lie beside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - by name
    """Rewrites links that lead into docs/ or out of it; code is left alone."""
    source = {page: source for source, page in PAGES.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def rewrite(match: "re.Match[str]") -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match["path"]))
        found = PAGES.get(target, target.removeprefix("docs/"))
        if files.get_file_from_path(found) is None and not target.startswith("docs/") and (ROOT / target).exists():
            return match["text"]
        there = os.path.relpath(found, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{match['text']}]({there}{match['anchor'] or ''})"

    parts = _FENCED.split(markdown)
    for place in range(0, len(parts), 2):
        parts[place] = _COMMENT.sub(r"\1\n\n", _LINK.sub(rewrite, parts[place]))
    return "".join(parts)
