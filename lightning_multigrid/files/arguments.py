"""Arguments from users that must be in a range."""


def require(fulfilled: bool, name: str, value: object, requirement: str, advice: str = "") -> None:
    """Raises a ValueError that says what the argument `name` must be, unless that is fulfilled."""
    if not fulfilled:
        raise ValueError(f"`{name}` must be {requirement}, got {value!r}.{advice}")
