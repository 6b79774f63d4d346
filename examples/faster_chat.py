"""A chat that answers faster the longer it goes on: drafts come from what was said before, answers do not change.

python examples/faster_chat.py --target demo
"""

import argparse
import sys

import outrider

options = argparse.ArgumentParser()
options.add_argument("--target", default="demo")
options.add_argument("--max-new-tokens", type=int, default=256)
given = options.parse_args()

llm = outrider.load(given.target, drafter="suffix")
chat = []
print("You: ", end="", flush=True)
for line in sys.stdin:
    chat.append({"role": "user", "content": line.strip()})
    stream = llm.stream(chat, max_new_tokens=given.max_new_tokens)
    for piece in stream:
        print(piece.text, end="", flush=True)
    chat.append({"role": "assistant", "content": stream.output.text})
    stats = stream.output.stats
    print(f"\n({stats.tokens} tokens in {stats.rounds} passes of the model)\nYou: ", end="", flush=True)
print()
