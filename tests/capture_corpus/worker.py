"""Judge the programs named on standard input with one engine; one line of JSON for each, written at once."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class _TooSlow(BaseException):
    """No program may catch it."""


def _give_up(*_: Any) -> None:
    raise _TooSlow


def main() -> None:
    # The corpus is no distribution: it is imported from where it lies.
    spec = importlib.util.spec_from_file_location(
        "capture_corpus", HERE / "__init__.py", submodule_search_locations=[str(HERE)]
    )
    assert spec is not None
    sys.modules["capture_corpus"] = importlib.util.module_from_spec(spec)
    from capture_corpus.comparison import Verdict, judge
    from capture_corpus.corpus import all_programs
    from capture_corpus.devices import on_device, why_not_there
    from capture_corpus.engines import ENGINES

    engine, limit, device = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # What programs print is no answer.
    programs = all_programs()
    signal.signal(signal.SIGALRM, _give_up)
    for line in sys.stdin:
        name = line.strip()
        signal.alarm(limit)
        try:
            if device == "cpu":
                verdict = judge(programs[name], ENGINES[engine])
            else:
                program = on_device(programs[name], device)
                reason = why_not_there(program)
                verdict = Verdict("absent", "", reason) if reason else judge(program, ENGINES[engine])
        except _TooSlow:
            verdict = Verdict("failed", "", f"took longer than {limit} s")
        finally:
            signal.alarm(0)
        answers.write(json.dumps({"name": name, **dataclasses.asdict(verdict)}) + "\n")


if __name__ == "__main__":
    main()
