"""The package of Lightning that small scripts of this process import: Lightning's own, unless a variable names one."""

import importlib
import os
from typing import Any

VARIABLE = "PACKAGE_OF_SCRIPTS"
L: Any = importlib.import_module(os.environ.get(VARIABLE, "lightning.pytorch"))
