"""One module for each layout of files: a kind of cohort that finds its scans, and decodes one of them.

All modules here are imported, which registers their kinds.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
