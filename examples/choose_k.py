"""How many tokens to draft, on your own prompts: what each length brings, what it costs here, and the best of them.

    python examples/choose_k.py mine.txt --target demo --drafter suffix

`outrider tune` does this with trees, batches and intervals; here is the arithmetic alone.
"""

import argparse
from pathlib import Path
from statistics import median

import outrider

options = argparse.ArgumentParser()
options.add_argument("prompts", type=Path, help="one a line")
options.add_argument("--target", default="demo")
options.add_argument("--drafter", default="suffix")
options.add_argument("--longest", type=int, default=8)
options.add_argument("--max-new-tokens", type=int, default=64)
given = options.parse_args()

prompts = [line for line in given.prompts.read_text().splitlines() if line.strip()]
llm = outrider.load(given.target, given.drafter, policy="fixed:1")
speeds = {}
for k in range(given.longest + 1):
    setting = llm.using("none") if k == 0 else llm.using(policy=f"fixed:{k}")
    rounds = [
        round_ for prompt in prompts for round_ in setting.generate(prompt, max_new_tokens=given.max_new_tokens).rounds
    ]
    stats = outrider.Stats.of(rounds)
    seconds = median(round_.draft_seconds + round_.verify_seconds for round_ in rounds)
    speeds[k] = stats.tokens_per_pass / seconds
    print(f"k = {k}: {stats.tokens_per_pass:.2f} tokens per pass, {1000 * seconds:.1f} ms, {speeds[k]:.1f} tokens/s")
best = max(speeds, key=speeds.__getitem__)
print(f"Draft {best} tokens." if best else "Nothing pays here: decode plainly.")
