"""Published layouts of trained drafters, both ways. Knows no modules and no models: configs, names and shapes only.

Layouts as of vLLM 0.32 (`model_executor/models`, `transformers_utils/configs`), speculators, SGLang, and the methods'
own repositories. Reading is strict: every key that could change what a head computes is understood or refused by
name, and what a config leaves open is asked for rather than guessed.
"""
