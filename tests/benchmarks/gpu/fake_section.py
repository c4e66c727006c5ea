"""A fake process of a section; each row does what its name says: `python fake_section.py EVENTS ROW ...`. No GPU."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.gpu.events import EventWriter
from benchmarks.gpu.figures import Figure


def main() -> None:
    """Run the rows."""
    file, *rows = sys.argv[1:]
    if rows[0] == "never begins":
        print("no rows today", file=sys.stderr)
        sys.exit(3)
    events = EventWriter(Path(file))
    for number, row in enumerate(rows):
        events.begin(row)
        events.figure(row, Figure(f"{row} first", "ms", (float(number), os.getpid())))
        if row == "crash" or (row == "crash behind others" and number):
            print("about to crash", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        elif row == "raise" or (row == "raise behind others" and number):
            events.failed(row, "Traceback\nRuntimeError: CUDA error")
            sys.exit(1)
        elif row == "cannot":
            events.failed(row, "it is not installed", is_final=True)
            continue
        elif row in ("hang", "hang behind others"):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            Path(file).with_name("orphan").write_text(str(child.pid))
            time.sleep(60)
        elif row == "truncated":
            with Path(file).open("a") as raw:
                raw.write('{"event": "figure", "row": "truncated", "fig')
            os._exit(9)
        elif row in ("slow", "slower"):
            time.sleep(1.2)
        elif row == "spent":
            events.end(row)
            sys.exit(0)
        events.end(row)


if __name__ == "__main__":
    main()
