"""The package of Lightning that small scripts of this process import: Lightning's own, unless a variable names one."""

import importlib
import os

VARIABLE = "PACKAGE_OF_SCRIPTS"
L = importlib.import_module(os.environ.get(VARIABLE, "lightning.pytorch"))
