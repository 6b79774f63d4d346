"""Train the demo model's drafters: data of every kind, then EAGLE-3, Medusa and EAGLE.

Takes hours; the same command goes on where it was broken off.

    nohup python bench/train_demo.py --gsm8k gsm8k_train.jsonl --rounds 0-3 > /dev/null 2>&1 &

Prompts: problems from GSM8K's training set, chats that the model invents, and tasks made of its own answers to those
(summaries, translations, rewriting, questions about a text), so that nothing of Spec-Bench or of GSM8K's test set is
seen. Where runs/demo/texts-N.jsonl is (bench/passages.py makes one), round N has those prompts too. Everything goes to
runs/demo, a log per step beside its folder. Data comes in rounds of all kinds, so that it can be trained on after any
of them: `--rounds 0` trains runs/demo/METHOD-0 on the first, and `--rounds 1-3 --after 0` goes on from there to
METHOD-3 on three more; `--after shipped` goes on from the drafters in the package. The target's
states are kept as it writes (4.6 kB a token).
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from outrider.drafters.trained import SHIPPED

TASKS = {
    "summarising": ("Summarize: {long}", "Summarize the following text in two or three sentences.\n\n{text}"),
    "translating": (
        "Translate the following text into {language}.\n\n{text}",
        "Translate German to English: {foreign}",
    ),
    "retrieval": (
        "{long}\n\nQuestion: What does the text say about {topic}?",
        "Answer from the text.\n\nText: {text}\n\nQuestion: {topic}",
    ),
    "rewriting": (
        "Rewrite the following text so that it is easier to understand.\n\n{text}",
        "Correct the spelling and grammar of this text and return it, changing nothing else.\n\n{text}",
    ),
    "code": ("Write a Python function for this, with a docstring and an example.\n\n{topic}",),
    "extracting": (
        "List the names, places, dates and numbers of this text as JSON.\n\n{text}",
        "Name the three most important points of this text.\n\n{long}",
    ),
    "questions": ("{question}", "Explain in simple words: {topic}"),
    "writing": (
        "Write a short story about this: {topic}",
        "Write an email about this: {topic}",
        "You are a well-known expert. Speak as one would in all that follows. {topic}",
        "Compare two sides of this, and say which one is right and why: {topic}",
    ),
    "second turns": (
        "Now explain it again as to a child.",
        "Rewrite your previous answer in three sentences.",
        "Are you sure? Which assumptions have you made?",
        "Give me an example.",
    ),
}
LANGUAGES = ("German", "German", "French", "Spanish", "Italian", "English")
DATA = ["--max-new-tokens", "256", "--features", "auto"]
TEMPERATURES = "0,0.5,0.7,0.8,0.9,1.0"  # greedy ones too: that is what many people decode
TRAIN = ["--learn", "texts", "--longest", "1024"]
OWN = {  # options of a method
    "medusa": "layers = 2\nsteps_ahead = 4\nshare = 0.125\nsampled = 1024\noff_greedy = 0.2\nweight_decay = 0.3\n",
    "dflash": "anchors = 96\nsoft = true\n",
    "eagle": "steps_ahead = 2\nregression = 0.1\nmatching = 1.0\nsampled = 1024\n",
}
BATCH = {"medusa": 5120}  # tokens; 640 for others. It learns at an eighth of them: an epoch has an eighth of the steps


def main() -> None:
    """Run the steps that are not done yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gsm8k", type=Path, required=True, help="gsm8k_train.jsonl")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    parser.add_argument("--target", default="demo")
    parser.add_argument("--prompts", type=int, default=400, help="of each kind in a round, tasks twice as many")
    parser.add_argument("--maths", type=int, help="another number of problems in a round")
    parser.add_argument("--rounds", default="0-3", help="of data: N, FIRST-LAST, or several such: 4-5,10")
    parser.add_argument("--after", help="go on from the drafters of an earlier round, or from those `shipped`")
    parser.add_argument("--dtype", default="float32", help="the target's; bfloat16 is twice as fast on AVX2")
    parser.add_argument("--epochs", default="2")
    parser.add_argument("--evaluate-every", default="600", help="steps")
    parser.add_argument("--name", help="of the drafters, METHOD-NAME; the last round if not given")
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--temperatures", default=TEMPERATURES, help="of the answers")
    parser.add_argument("--train", default="", help="more options of `outrider train`, in one word")
    parser.add_argument("--methods", default="eagle3,medusa,eagle")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    numbers = list(rounds(options.rounds))
    folders = [folder for number in numbers for folder in gather(options, number)]
    train = ["--target", options.target, "--dtype", options.dtype, "--epochs", options.epochs, *TRAIN]
    train += ["--evaluate-every", options.evaluate_every, *shlex.split(options.train)]
    train += [part for folder in folders for part in ("--data", str(folder))]
    for method in filter(None, options.methods.split(",")):
        own = options.out / f"{method}.toml"
        own.write_text(OWN.get(method, ""), encoding="utf-8")
        features = "online" if method == "dflash" else "stored"  # it sees other layers than were kept
        command = ["train", method, *train, "--batch-tokens", str(BATCH.get(method, 640)), "--features", features]
        command += ["--config", str(own), *before(options, method)]
        step(options.out, f"{method}-{options.name or numbers[-1]}", command)


def rounds(text: str) -> Iterator[int]:
    """4-5,10 -> 4, 5, 10."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def before(options: argparse.Namespace, method: str) -> list[str]:
    """What a drafter goes on from."""
    if options.after is None:
        return []
    folder = SHIPPED / method if options.after == "shipped" else options.out / f"{method}-{options.after}"
    return ["--start-from", str(folder)]


def gather(options: argparse.Namespace, number: int) -> list[Path]:
    """A round of data: its folders, one of each kind, tasks twice as many; and prompts about texts."""
    data = ["data", "--target", options.target, "--dtype", options.dtype]
    data += ["--batch", str(options.batch), "--seed", str(number), *DATA, "--temperatures", options.temperatures]
    folders = [options.out / f"{kind}-{number}" for kind in ("invented", "tasks", "maths")]
    invented, made, problems = folders
    step(options.out, invented.name, [*data, "--self", str(options.prompts)])
    sources = [invented, options.out / f"tasks-{number - 1}"]
    write(made.with_suffix(".jsonl"), tasks(options.target, sources, 2 * options.prompts))
    step(options.out, made.name, [*data, "--prompts", str(made.with_suffix(".jsonl"))])
    count = options.maths or options.prompts
    write(problems.with_suffix(".jsonl"), maths(options.gsm8k, number * count, count))
    step(options.out, problems.name, [*data, "--prompts", str(problems.with_suffix(".jsonl"))])
    written = options.out / f"texts-{number}"
    if written.with_suffix(".jsonl").exists():
        step(options.out, written.name, [*data, "--prompts", str(written.with_suffix(".jsonl"))])
        folders.append(written)
    return folders


def step(out: Path, name: str, arguments: list[str]) -> None:
    """One command, its output in a log; one that has ended well is not run again, and a broken-off one goes on."""
    done = out / f"{name}.done"
    if done.exists():
        return
    with (out / f"{name}.log").open("a", encoding="utf-8") as log:
        command = [sys.executable, "-m", "outrider", *arguments, "--out", str(out / name)]
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)
    done.touch()


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
        yield chat("maths", json.loads(line)["question"])


def tasks(target: str, folders: list[Path], count: int) -> Iterator[dict[str, object]]:
    """Tasks made of invented chats and of the tasks of the round before; long ones have several answers for a text."""
    from transformers import AutoTokenizer

    from outrider.loading import Loader

    tokenizer = AutoTokenizer.from_pretrained(Loader(offline=True).find(target) or target)
    files = [folder / "answers.jsonl" for folder in folders]
    lines = [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]
    lines = [line for line in lines if line["temperature"] <= 0.8 and line["answer"]]  # the others make little sense
    asked = [question(tokenizer.decode(line["prompt"], skip_special_tokens=True)) for line in lines]
    said = [tokenizer.decode(line["answer"], skip_special_tokens=True).strip() for line in lines]
    translated = [text for text, line in zip(said, lines, strict=True) if line["category"] == "translating"]
    choice, kinds = random.Random(f"tasks of {folders[0].name}"), list(TASKS)
    for number in range(count):
        kind, place = kinds[number % len(kinds)], choice.randrange(len(lines))
        topic, text = asked[place].split("\n")[0][:300], said[place]
        form = choice.choice(TASKS[kind]).format(
            text=text[: choice.randrange(200, 1200)],
            long="\n\n".join([text, *choice.sample(said, choice.randrange(1, 4))]),
            topic=topic,
            question=topic.split(". ")[0],
            language=choice.choice(LANGUAGES),
            foreign=choice.choice(translated or said)[: choice.randrange(80, 400)],
        )
        yield chat(kind, *((topic, text, form) if kind == "second turns" else (form,)))


def question(prompt: str) -> str:
    """What the user said last in a prompt."""
    return prompt.rpartition("\nuser\n")[2].strip().removesuffix("assistant").strip()


def chat(category: str, *turns: str) -> dict[str, object]:
    """A record of a file of prompts: what was said in turns, by the user first."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(turns)], "category": category}


if __name__ == "__main__":
    main()
