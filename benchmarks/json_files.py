"""Files of the benchmarks."""

import json
import os
from pathlib import Path
from typing import Any


def replace_json(path: Path, content: Any) -> None:
    """Writes a JSON file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(content, indent=1) + "\n")
    beside.replace(path)
