"""One module a layout of files: a kind of cohort that finds what lies there, and decodes one of it.

Every module here is imported, so a kind is known by being here.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
