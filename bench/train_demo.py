"""Train the demo model's drafters: data of every kind, then EAGLE-3, Medusa and EAGLE.

Takes hours; the same command goes on.

    nohup python bench/train_demo.py > /dev/null 2>&1 &

Prompts: problems from GSM8K's training set, chats that the model invents, and tasks made of its own answers to those
(summaries, translations, rewriting, questions about a text), so that nothing of Spec-Bench or of GSM8K's test set is
seen. Everything goes to runs/demo, a log per step beside its folder. Data comes in rounds of all kinds, so that it can
be trained on after any of them: `--rounds 1` first, and more later. The target's states at the answers are computed
once, by the first method, and kept beside them (4.6 kB a token with EAGLE-3's layers); the others read them.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TASKS = {
    "summarising": "Summarize the following text in two or three sentences.\n\n{text}",
    "translating": "Translate the following text into {language}.\n\n{text}",
    "rewriting": "Rewrite the following text so that it is easier to understand.\n\n{text}",
    "correcting": "Correct the spelling and grammar of this text and return it, changing nothing else.\n\n{text}",
    "retrieval": "Answer from the text.\n\nText: {text}\n\nQuestion: What does the text say about {topic}?",
    "code": "Write a Python function for this, with a docstring and an example.\n\n{topic}",
}
LANGUAGES = ("German", "French", "Spanish", "Italian", "English")


def main() -> None:
    """Run the steps that are not done yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gsm8k", type=Path, required=True, help="gsm8k_train.jsonl")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    parser.add_argument("--target", default="demo")
    parser.add_argument("--prompts", type=int, default=400, help="of each of the three kinds in a round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--methods", default="eagle3,medusa,eagle")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    folders = [folder for number in range(options.rounds) for folder in gather(options, number)]
    given = [part for folder in folders for part in ("--data", str(folder))]
    for method in filter(None, options.methods.split(",")):
        step(options.out, method, ["train", method, "--target", options.target, "--features", "stored", *given])


def gather(options: argparse.Namespace, number: int) -> list[Path]:
    """A round of data: its folders, one of each kind."""
    data = ["data", "--target", options.target, "--batch", str(options.batch), "--max-new-tokens", "320"]
    data += ["--seed", str(number), "--dtype", "bfloat16"]  # twice as fast, and the same model but for rounding
    folders = [options.out / f"{kind}-{number}" for kind in ("invented", "maths", "tasks")]
    invented, problems, made = folders
    write(problems.with_suffix(".jsonl"), maths(options.gsm8k, number * options.prompts, options.prompts))
    step(options.out, invented.name, [*data, "--self", str(options.prompts)])
    step(options.out, problems.name, [*data, "--prompts", str(problems.with_suffix(".jsonl"))])
    write(made.with_suffix(".jsonl"), tasks(options.target, invented, options.prompts))
    step(options.out, made.name, [*data, "--prompts", str(made.with_suffix(".jsonl"))])
    return folders


def step(out: Path, name: str, arguments: list[str]) -> None:
    """One command, its output in a log; it finds by itself what is done already."""
    with (out / f"{name}.log").open("a", encoding="utf-8") as log:
        command = [sys.executable, "-m", "outrider", *arguments, "--out", str(out / name)]
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)


def write(file: Path, records: Iterator[dict[str, object]]) -> None:
    """A file of prompts, made once."""
    if not file.exists():
        work = file.with_suffix(".tmp")
        work.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
        work.rename(file)


def maths(file: Path, first: int, count: int) -> Iterator[dict[str, object]]:
    """Problems of GSM8K's training set, shuffled, from the `first` on."""
    lines = file.read_text(encoding="utf-8").splitlines()
    random.Random(0).shuffle(lines)
    for line in lines[first : first + count]:
        yield chat(json.loads(line)["question"], "maths")


def tasks(target: str, folder: Path, count: int) -> Iterator[dict[str, object]]:
    """Tasks made of invented chats and their answers."""
    from transformers import AutoTokenizer

    from outrider.loading import Loader

    tokenizer = AutoTokenizer.from_pretrained(Loader(offline=True).find(target) or target)
    choice = random.Random(1)
    lines = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    kinds = list(TASKS)
    for number in range(count):
        line = choice.choice(lines)
        topic = tokenizer.decode(line["prompt"], skip_special_tokens=True).split("\n", 1)[-1].strip()
        text = tokenizer.decode(line["answer"], skip_special_tokens=True).strip()
        if number % 7 == 0:  # long prompts too
            other = choice.choice(lines)["answer"]
            text += "\n\n" + tokenizer.decode(other, skip_special_tokens=True).strip()
        kind = kinds[number % len(kinds)]
        topic = topic.removesuffix("assistant").strip().removeprefix("user").strip()
        yield chat(TASKS[kind].format(text=text, topic=topic[:300], language=choice.choice(LANGUAGES)), kind)


def chat(text: str, category: str) -> dict[str, object]:
    """A record of a file of prompts."""
    return {"messages": [{"role": "user", "content": text}], "category": category}


if __name__ == "__main__":
    main()
