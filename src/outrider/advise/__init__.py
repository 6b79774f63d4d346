"""Which drafter for which situation: rules with reasons, memory from the model's own configuration, measurements.

`situation.py` is what is asked, `methods.py` what there is to choose from, `rules.py` the decision matrix, `shape.py`
how much memory a model and a head on it take, `ranking.py` the answer, `measured.py` the answer where a bench has one,
`matrix.py` the matrix as docs/choosing.md has it. Nothing here reads weights or runs a model.
"""
