"""Generated pages say what the code says, and the README's commands exist."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_generated_pages_are_up_to_date():
    done = subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_bkrl_command_in_the_documents_parses(monkeypatch, capsys):
    from typer.main import get_command

    from bkrl.cli import app, run_command

    known = get_command(app).commands
    verbs = set()
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", page.read_text(), re.S):
            for line in block.replace("\\\n", " ").splitlines():
                words = line.split("#")[0].split()
                if words[:1] == ["$"]:
                    words = words[1:]
                if words[:1] == ["bkrl"] and len(words) > 1 and not words[1].startswith("-"):
                    verbs.add(words[1])
                    flags = [w.split("=")[0] for w in words if w.startswith("--")]
                    monkeypatch.setenv("COLUMNS", "250")
                    two = " ".join(words[1:3]) in known or hasattr(known.get(words[1]), "commands")
                    sub = [words[2]] if two else []
                    assert run_command([words[1], *sub, "--help"]) == 0, line
                    text = capsys.readouterr().out
                    assert not [f for f in flags if f not in text], line
    assert {"collect", "label", "train-rm", "train-rs", "evaluate", "report"} <= verbs


def test_links_between_documents_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target).exists(), f"{page.name} → {target}"
