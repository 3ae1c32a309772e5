"""`python -m lightning_multigrid.files URL`: writes what is in a list at a URL to its output."""

import sys

from lightning_multigrid.files.remote_file import read_text_once

if __name__ == "__main__":
    try:
        sys.stdout.buffer.write(read_text_once(sys.argv[1]))
    except OSError as error:
        sys.exit(error.strerror or str(error))
