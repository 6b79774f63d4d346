#!/bin/sh
# Train an EAGLE-3 drafter for your model, see what it is worth, and write it for vLLM.
#   TARGET=./my-model PROMPTS=mine.jsonl sh examples/train_eagle3.sh
set -e
: "${TARGET:=demo}" "${PROMPTS:=builtin}" "${OUT:=runs}"

outrider data --target "$TARGET" --prompts "$PROMPTS" --samples 4 --out "$OUT/data"

outrider train eagle3 --target "$TARGET" --data "$OUT/data" --out "$OUT/eagle3"

outrider prove --target "$TARGET" --drafter "eagle3:$OUT/eagle3" --quick

outrider export "$OUT/eagle3" --target "$TARGET" --format speculators --out "$OUT/eagle3-vllm"
