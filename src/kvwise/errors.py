"""Every error that a user can meet, and the exit code each one ends a command with.

    KvwiseError                 1  the run failed
    ├─ InputError               2  what the user gave can't be used
    │  ├─ UsageError            2  an option or argument
    │  ├─ ModelNotFound         2  a name that resolves to nothing
    │  ├─ CheckpointError       2  a model file that is broken, hostile or incomplete
    │  ├─ SpecError             2  a config that can't be understood
    │  │  └─ UnknownArchitecture 2
    │  └─ TokenizerError        2  a vocabulary that can't be built
    │     └─ TemplateError      2  a chat template that fails, escapes or runs too long
    ├─ DoesNotFit               3  the plan exceeds the memory there is
    ├─ BackendError             1  a backend can't run this program
    ├─ NotMeasured              1  a figure was asked for that no profile holds
    └─ IntegrityError           1  the cache's own invariants are broken: always a bug

A message says what was wrong, what was expected and what to do.
"""

from __future__ import annotations


class KvwiseError(Exception):
    """`problem` says what was wrong; `expected` and `action` complete the message when given."""

    exit_code = 1

    def __init__(self, problem: str, *, expected: str = "", action: str = "") -> None:
        self.problem, self.expected, self.action = problem, expected, action
        parts = [problem]
        if expected:
            parts.append(f"expected {expected}")
        if action:
            parts.append(action)
        super().__init__("; ".join(parts))


class InputError(KvwiseError):
    exit_code = 2


class UsageError(InputError):
    pass


class ModelNotFound(InputError):
    pass


class CheckpointError(InputError):
    pass


class SpecError(InputError):
    pass


class UnknownArchitecture(SpecError):
    pass


class TokenizerError(InputError):
    pass


class TemplateError(TokenizerError):
    pass


class DoesNotFit(KvwiseError):
    exit_code = 3


class BackendError(KvwiseError):
    pass


class NotMeasured(KvwiseError):
    pass


class IntegrityError(KvwiseError):
    pass
