"""What a module defines for others."""


def entries(module):
    """Names of the functions and classes that a module defines and that have no underscore."""
    defined = {
        name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    }
    return [name for name in defined if not name.startswith("_")]
