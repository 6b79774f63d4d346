"""Quantises a GGUF file to Q8_0 by llama.cpp's own function, in that peer's environment. Knows nothing of the rest.

usage: python quantise_llamacpp.py SOURCE DESTINATION
"""

from __future__ import annotations

import ctypes
import sys

import llama_cpp


def main() -> None:
    """Quantise; ends with llama.cpp's own error number if that fails."""
    source, destination = (name.encode() for name in sys.argv[1:3])
    choice = llama_cpp.llama_model_quantize_default_params()
    choice.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
    choice.allow_requantize = True
    choice.nthread = 1
    sys.exit(llama_cpp.llama_model_quantize(source, destination, ctypes.byref(choice)))


if __name__ == "__main__":
    main()
