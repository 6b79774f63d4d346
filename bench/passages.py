"""Prompts about texts that people wrote: summaries, questions with and without a text, translations, rewriting.

What a model invents is like itself; articles and paragraphs that users paste are not. Textbooks of OpenStax
(https://github.com/openstax: folders of .cnxml) and German laws (https://github.com/bundestag/gesetze: .md) are free
and have nothing to do with the benchmarks.

    python bench/passages.py --books osbooks-us-history --german gesetze --count 900 --out texts.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from train_demo import chat

_NAME = "{http://cnx.rice.edu/cnxml}"
_SHORTEST = 150  # characters of a paragraph
_CITED = re.compile(r"\b(19|20)\d\d[a-z]?\. ")  # as lists of sources are
FORMS = {
    "summarising": ("Summarize: {long}", "Summarize: {long}", "Give the gist of this in two sentences.\n\n{long}"),
    "retrieval": ("{long}\n\n{question}", "{long}\n\n{question}", "Answer from the text.\n\n{text}\n\n{question}"),
    "questions": ("{question}", "{question}", "What is meant by {term}?", "Explain {term} to a beginner."),
    "translating": (
        "Translate German to English: {german}",
        "Translate German to English: {german}",
        "Translate into German: {sentence}",
    ),
    "rewriting": ("Rewrite this in simpler words.\n\n{text}", "Find and correct the mistakes in this text.\n\n{text}"),
    "extracting": ("Which people, places and dates does this text name? Answer in JSON.\n\n{text}",),
    "writing": (
        "Write a blog post about {term}.",
        "Outline an essay on {title}, with its main arguments.",
        "What are the causes and effects of {term}? Give examples.",
        "You are a teacher. Prepare a lesson about {title}, and give three exercises for it.",
        "Tell a story in which {term} has a part.",
    ),
}


class Module(NamedTuple):
    """A section of a book."""

    title: str
    paragraphs: list[str]
    terms: list[str]
    questions: list[str]


def main() -> None:
    """Write the prompts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", type=Path, nargs="+", required=True, help="folders with .cnxml files")
    parser.add_argument("--german", type=Path, required=True, help="a folder with German .md files")
    parser.add_argument("--count", type=int, default=900)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="a file of prompts, .jsonl")
    options = parser.parse_args()
    modules = [module for folder in options.books for file in sorted(folder.rglob("*.cnxml")) for module in read(file)]
    german = [sentence for file in sorted(options.german.rglob("*.md")) for sentence in sentences(file)]
    with options.out.open("w", encoding="utf-8") as out:
        for record in prompts(modules, german, options.count, random.Random(options.seed)):
            out.write(json.dumps(record, ensure_ascii=False) + "\n")


def read(file: Path) -> Iterator[Module]:
    """The section in a file, where it has enough text."""
    root = ElementTree.parse(file).getroot()
    content = root.find(f"{_NAME}content")
    if content is None:
        return
    asked = [words(problem) for problem in content.iter(f"{_NAME}problem")]
    texts = [words(part) for part in content.iter(f"{_NAME}para")]
    paragraphs = [text for text in texts if len(text) >= _SHORTEST and "http" not in text and not _CITED.search(text)]
    terms = [text for part in root.iter(f"{_NAME}term") if len(text := words(part)) > 3]
    questions = [text for text in asked if text.endswith("?") and len(text) < 200]
    if len(paragraphs) > 2 and terms:
        yield Module(words(root[0]), paragraphs, terms, questions or [f"What is {terms[0]}?"])


def words(part: ElementTree.Element) -> str:
    """An element's text."""
    return re.sub(r"\(\s*\)|\s+", " ", "".join(part.itertext())).strip()


def sentences(file: Path) -> Iterator[str]:
    """Whole German sentences of a file."""
    for block in file.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        text = re.sub(r"\s+", " ", re.sub(r"^\(\d+\w?\)", "", block)).strip()
        if 60 < len(text) < 400 and text[0].isalpha() and text.endswith("."):
            yield text


def prompts(modules: list[Module], german: list[str], count: int, choice: random.Random) -> Iterator[dict[str, object]]:
    """So many prompts, as many of each kind."""
    for number in range(count):
        kind = list(FORMS)[number % len(FORMS)]
        module = choice.choice(modules)
        first = choice.randrange(len(module.paragraphs))
        text = module.paragraphs[first]
        form = choice.choice(FORMS[kind]).format(
            text=text[:1200],
            long="\n".join(module.paragraphs[first : first + choice.randrange(2, 5)])[:3500],
            question=choice.choice(module.questions),
            term=choice.choice(module.terms),
            title=module.title,
            german=choice.choice(german),
            sentence=text.split(". ")[0] + ".",
        )
        yield chat(kind, form)


if __name__ == "__main__":
    main()
