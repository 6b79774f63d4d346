"""What can go wrong, in one hierarchy. Knows no models, no terminal.

OutriderError
├── UsageError                the caller can put it right: one sentence with the remedy, exit code 2
│   ├── BadOption             an option's value, or a pair of options that do not go together
│   ├── BadPrompt             empty, unreadable, or longer than the context
│   ├── ModelNotFound         no such model, folder, file or package
│   ├── UnsupportedModel      the model has a part that speculation cannot roll back or place
│   ├── VocabularyMismatch    target and drafter do not mean the same tokens by the same ids
│   └── TrainingStopped       training cannot go on; what it has saved is kept
└── NoProgress                a round committed nothing: a fault of ours, never the caller's
"""


class OutriderError(Exception):
    """Base of everything that Outrider raises on purpose."""


class UsageError(OutriderError):
    """The caller can put it right; the message says how, in one sentence."""


class BadOption(UsageError):
    """An option has a value that cannot work, or does not go with another one."""


class BadPrompt(UsageError):
    """The prompt is empty, cannot be read, or does not fit into the context."""


class ModelNotFound(UsageError):
    """No model is to be had under that name."""


class UnsupportedModel(UsageError):
    """The model has a part that the loop cannot serve; the message names it."""


class VocabularyMismatch(UsageError):
    """Target and drafter do not mean the same tokens by the same ids."""


class TrainingStopped(UsageError):
    """Training cannot go on. The last checkpoint is kept, and the message says where."""


class NoProgress(OutriderError):
    """A round committed no token. The loop stops rather than spin."""


def first_line(error: Exception) -> str:
    """What an error of another library says first, to be told within a sentence; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
