#!/bin/sh
# Find out what pays on your model and prompts, and serve it on vLLM with exactly that.
#   TARGET=./my-model PROMPTS=mine.jsonl sh examples/deploy_vllm.sh            shows the command
#   TARGET=./my-model PROMPTS=mine.jsonl RUN=--run sh examples/deploy_vllm.sh  starts the server
set -e
: "${TARGET:=demo}" "${PROMPTS:=builtin}" "${DRAFTERS:=suffix,lookup}" "${OUT:=outrider.toml}" "${RUN:=}"

outrider tune --target "$TARGET" --drafters "$DRAFTERS" --prompts "$PROMPTS" --out "$OUT"

outrider deploy vllm --config "$OUT" $RUN
