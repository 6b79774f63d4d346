"""Have a file rewritten, many tokens at a time: most of the answer is the file itself, so that is the prediction.

python examples/edit_code.py examples/edit_code.py "Rename the variable given to arguments." --target demo
"""

import argparse
from pathlib import Path

import outrider

options = argparse.ArgumentParser()
options.add_argument("file", type=Path)
options.add_argument("change")
options.add_argument("--target", default="demo")
options.add_argument("--max-new-tokens", type=int, default=1024)
given = options.parse_args()

code = given.file.read_text()
llm = outrider.load(given.target, drafter="reference")
chat = [{"role": "user", "content": f"{given.change} Answer with the whole file and nothing else.\n\n{code}"}]
out = llm.generate(chat, prediction=code, max_new_tokens=given.max_new_tokens)
print(out.text)
share = out.stats.acceptance_rate or 0.0
print(f"# {out.stats.tokens} tokens in {out.stats.rounds} passes; {share:.0%} of the predicted tokens were right")
